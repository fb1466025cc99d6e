//! The operator table.
pub mod class;
pub mod schema;
pub(crate) mod generated { 
    #[derive(Clone,Copy,PartialEq,Eq,PartialOrd,Ord,Hash,Debug)] pub enum OpKind { Abs }
}
pub use generated::OpKind;
