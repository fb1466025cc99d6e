//! Reasons of a choice of formats for the whole model.

use std::num::NonZeroU16;

/// A choice of formats for the whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placer {
    /// The minimum cut.
    Cut,
    /// Painting.
    Paint,
}

impl Placer {
    /// Both choices.
    pub const ALL: [Placer; 2] = [Placer::Cut, Placer::Paint];

    /// The text of the rule.
    pub const fn as_str(self) -> &'static str {
        match self {
            Placer::Cut => "cut",
            Placer::Paint => "paint",
        }
    }
}

/// The reason why a choice of formats decides as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// fp32 is the cheapest format.
    CheapestFull,
    /// The 16-bit format is the cheapest.
    CheapestLow,
    /// fp32 is the cheapest format of a product with a small share of the work of all products: the share in tenths of
    /// a percent, rounded up.
    SmallShare(NonZeroU16),
    /// The variable has the format of its operands.
    FollowsOperands,
    /// A large constant takes half the bytes.
    StoredLow,
    /// A sum in the state of a loop.
    LoopState,
    /// A result leaves the model in fp32.
    MakesOutput,
    /// No 16-bit operator is before the node.
    NothingBefore,
    /// No 16-bit operator is behind the node.
    NothingBehind,
    /// Nodes on both sides are 16-bit.
    Between,
    /// The node moves constants to 16-bit readers.
    MovesConstants,
    /// The node before is 16-bit.
    BehindLow,
    /// All nodes behind are 16-bit.
    BeforeLow,
}

impl Why {
    /// All reasons without a number.
    pub const FIXED: [Why; 12] = [
        Why::CheapestFull,
        Why::CheapestLow,
        Why::FollowsOperands,
        Why::StoredLow,
        Why::LoopState,
        Why::MakesOutput,
        Why::NothingBefore,
        Why::NothingBehind,
        Why::Between,
        Why::MovesConstants,
        Why::BehindLow,
        Why::BeforeLow,
    ];
}
