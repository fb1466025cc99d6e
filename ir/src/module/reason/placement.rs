//! Reasons of a choice of formats for the whole model.

use std::num::NonZeroU16;

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
    /// The operands are values that nothing has rounded yet.
    Unrounded,
    /// A result leaves the model in fp32.
    MakesOutput,
    /// No 16-bit operator is before the node.
    NothingBefore,
    /// No 16-bit operator is behind the node.
    NothingBehind,
    /// The operator is not between 16-bit neighbors, or fp32 is its cheapest format.
    NotBetween,
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
        Why::Unrounded,
        Why::MakesOutput,
        Why::NothingBefore,
        Why::NothingBehind,
        Why::NotBetween,
        Why::BehindLow,
        Why::BeforeLow,
    ];
}
