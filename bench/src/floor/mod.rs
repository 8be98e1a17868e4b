//! The floors: clients that send only the requests that a lock requires. They use blocking sockets on one thread, have
//! no error handling, and share no code with zklock, so they serve as an independent reference.

mod recipe;
pub(crate) mod tls;
mod wire;
mod workers;

use crate::driver::{Driver, PrepareCommand, Stamp};
use crate::machine::Nanos;
use recipe::FloorRecipe;
use workers::Workers;

/// A floor as a driver.
pub(crate) struct Floor {
    recipe: FloorRecipe,
    prepared: Option<Workers>,
}

impl Floor {
    /// The floor with this name, or `None` if there is none.
    pub(crate) fn new(name: &str) -> Option<Self> {
        FloorRecipe::of(name).map(|recipe| Self { recipe, prepared: None })
    }
}

impl Driver for Floor {
    fn prepare(&mut self, order: &PrepareCommand) -> Result<(), String> {
        self.prepared = Some(Workers::prepare(self.recipe, order));
        Ok(())
    }

    fn go(&mut self, start: Nanos, end: Nanos) -> Result<Vec<Stamp>, String> {
        let queue = self.prepared.take().ok_or("go before prepare")?;
        Ok(queue.run(start, end))
    }
}
