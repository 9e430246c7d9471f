//! The order of an epoch: a pure function of (seed, epoch).
//!
//! All passes (a game seen by one player, mirrored or not) lie in [`Lanes`] in random order.

use super::dataset::{Dataset, Pass};
use crate::lanes::Lanes;
pub use crate::lanes::StepShape;
use candle_models::random::Random;
use candle_models::{Error, Result};
use std::ops::Range;

/// Consecutive rows of one pass inside a stretch of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Whose rows.
    pub pass: Pass,
    /// Rows of the pass.
    pub rows: Range<usize>,
    /// Place of the first one in the stretch.
    pub at: usize,
}

/// The order of one epoch.
#[derive(Debug)]
pub struct Epoch {
    passes: Vec<Pass>,
    lanes: Lanes,
}

impl Epoch {
    /// The order of the epoch that `random` is the address of. `mirror` is the probability that a pass is mirrored.
    ///
    /// # Errors
    /// If the games have fewer rows than one step.
    pub fn new(data: &Dataset, shape: StepShape, mirror: f32, random: Random) -> Result<Self> {
        let coin = random.stream("mirror");
        let pass = |(i, pass): (usize, Pass)| Pass { mirror: coin.uniform(i as u64) < mirror, ..pass };
        let passes: Vec<Pass> = data.passes().into_iter().enumerate().map(pass).collect();
        let lengths: Vec<usize> = passes.iter().map(|pass| data.rows(pass.game)).collect();
        let lanes = Lanes::new(&lengths, shape, random).ok_or_else(|| {
            let (found, StepShape { lanes, unroll }) = (lengths.iter().sum::<usize>(), shape);
            Error::Input(format!("the training games have {found} rows, fewer than one step of {lanes} x {unroll}"))
        })?;
        Ok(Self { passes, lanes })
    }

    /// Steps of the epoch: the same number in every epoch.
    pub fn steps(&self) -> usize {
        self.lanes.steps()
    }

    /// The rows of one lane in one step.
    pub fn chunk(&self, step: usize, lane: usize) -> Vec<Piece> {
        self.stretch(step..step + 1, lane)
    }

    /// The rows of one lane in consecutive steps of the epoch.
    pub fn stretch(&self, steps: Range<usize>, lane: usize) -> Vec<Piece> {
        let pieces = self.lanes.stretch(steps, lane).into_iter();
        pieces.map(|piece| Piece { pass: self.passes[piece.sequence], rows: piece.rows, at: piece.at }).collect()
    }
}
