//! Data that a stage reads from outside the program and can read again during the run.

use std::sync::{Arc, Mutex};

use crate::pipeline::Problem;

/// Data that is read again on a reload request, such as a file of rules. Register the data with [`Setup::reloads`].
///
/// A control thread, never a worker, calls the methods of this trait, so the methods may read files, allocate and wait.
/// The stages on the workers switch to the new data between two batches ([`Stage::tick`]). The stages then hand the old
/// data back, and the methods of this trait free the old data.
///
/// [`Setup::reloads`]: super::Setup::reloads
/// [`Stage::tick`]: super::Stage::tick
pub trait Reload: Send {
    /// Reads the data and checks whether [`Reload::reload`] would accept the data, but changes nothing. A change of the
    /// config calls this method first. If the data is wrong, the program refuses the whole change. The default accepts
    /// any data.
    ///
    /// # Errors
    /// Returns all problems of the data.
    fn check(&mut self) -> Result<(), Vec<Problem>> {
        Ok(())
    }

    /// Reads the data again and hands the new data to the workers. Returns a description of the new data.
    ///
    /// # Errors
    /// Returns all problems of the new data. The workers then keep the old data.
    fn reload(&mut self) -> Result<String, Vec<Problem>>;

    /// Frees the data that workers have handed back. Returns `true` if all workers have handed back their old data.
    fn settle(&mut self) -> bool;
}

/// All [`Reload`]s of a run, each with the name of the stage that registered it.
pub type Reloads = Vec<(String, Arc<Mutex<dyn Reload>>)>;
