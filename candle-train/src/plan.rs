//! A run of a family's model that only has to be started, and what it gave: what a family makes of a configuration, for the command and for
//! programs.

use crate::report::About;
use crate::run::{Ended, Place, Stop};
use crate::trainer::Resources;
use std::path::Path;

/// A run that is ready to start: everything that can be wrong with it has been checked.
pub trait TrainingPlan {
    /// What it gives.
    type Trained: TrainingResult;

    /// What it computes with.
    fn resources(&self) -> &Resources;

    /// What its report says of it. The configuration and the table of the model are printed, too.
    ///
    /// # Errors
    /// If the configuration cannot be written as text.
    fn about(&self) -> candle_models::Result<About>;

    /// What is printed below them: its data, its size, its length. The last line goes on with what it computes with.
    fn describe(&self) -> String;

    /// Trains until the last step, or until `stop` says so.
    ///
    /// # Errors
    /// As [`Run::train`](crate::run::Run::train).
    fn train(self, place: &Place, stop: &Stop) -> candle_models::Result<Self::Trained>;
}

/// What a run gave.
pub trait TrainingResult {
    /// How it ended, and its parameters.
    fn ended(&self) -> &Ended;

    /// Writes the model to a directory as a bundle, and gives the lines of figures to print. Rank 0 is asked. Of a run that was
    /// stopped the card says so.
    ///
    /// # Errors
    /// If the bundle cannot be written.
    fn save(&self, bundle: &Path) -> candle_models::Result<String>;
}
