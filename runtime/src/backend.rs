//! Common interface of backends: they prepare a module, and the prepared module runs any number of times.

use crate::cpu::{ExecuteError, NodeObserver, PrepareError};
use crate::data::{Data, DataRef};
use ampc_ir::Module;

/// Something that runs modules.
pub trait Backend {
    /// A module that is ready to run.
    type Executable: Execute;

    /// Makes a module ready to run.
    ///
    /// # Errors
    /// With everything that the backend lacks, all of it at once, or if a constant cannot be read.
    fn prepare(&self, module: &Module) -> Result<Self::Executable, PrepareError>;
}

/// A module that is ready to run.
pub trait Execute {
    /// The module.
    fn module(&self) -> &Module;

    /// Plans the graph for inputs of these types and dims, as [`run`](Self::run) does first.
    ///
    /// # Errors
    /// If inputs do not fit the graph, or it needs more memory than it may take.
    fn bind(&mut self, inputs: &[Option<DataRef<'_>>]) -> Result<(), ExecuteError>;

    /// Computes the outputs, in order. There is an input for every formal input of the graph, in order; an
    /// input with a default, or a state that was given before, may be `None`. `observer` sees every value that
    /// is computed.
    ///
    /// # Errors
    /// If inputs do not fit the graph, a node cannot be computed, or a limit is reached.
    fn run(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        observer: Option<&mut (dyn NodeObserver + Send)>,
    ) -> Result<Vec<Data>, ExecuteError>;
}
