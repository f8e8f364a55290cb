//! What a stage takes from outside, and takes anew while it runs.

use crate::pipeline::Problem;

/// Something that is read anew when the run is told to, such as a file of rules ([`Setup::reloads`]).
///
/// It is called on a thread that is no worker's, so it may read, allocate and wait. What it made it hands to the workers'
/// stages, which take it up between two batches ([`Stage::tick`]) and hand back what they had, to be freed here.
///
/// [`Setup::reloads`]: super::Setup::reloads
/// [`Stage::tick`]: super::Stage::tick
pub trait Reload: Send {
    /// Reads anew and hands it to the workers. Says in words what there is now.
    ///
    /// # Errors
    /// All that is wrong with it. The workers then go on with what they have.
    fn reload(&mut self) -> Result<String, Vec<Problem>>;

    /// Frees what workers have handed back. Whether all of them have.
    fn settle(&mut self) -> bool;
}

/// One [`Reload`] of a run, with the name of its stage.
pub(crate) type Reloads = Vec<(String, Box<dyn Reload>)>;
