//! The order of an epoch: a pure function of (seed, epoch).
//!
//! All passes (a game seen by one player, mirrored or not) are laid end to end in random order. The line starts at a random
//! offset and is cut into as many equal lanes as the batch has rows; a step takes the next `unroll` rows of every lane. So
//! a lane meets the end of one game and the start of the next inside a chunk, where a reset separates them; every row comes
//! at most once per epoch, no row is padding, and fewer than one step's rows are left out.

use super::dataset::{Dataset, Pass};
use candle_models::random::Random;
use candle_models::{Error, Result};
use std::ops::Range;

/// Rows of a step: `lanes` sequences of `unroll` frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepShape {
    /// Sequences side by side.
    pub lanes: usize,
    /// Frames of each.
    pub unroll: usize,
}

impl StepShape {
    /// Rows of a step.
    pub fn rows(self) -> usize {
        self.lanes * self.unroll
    }
}

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
    /// Where each pass starts on the line, and the line's length.
    starts: Vec<usize>,
    offset: usize,
    steps: usize,
    shape: StepShape,
}

impl Epoch {
    /// The order of the epoch that `random` is the address of. `mirror` is the probability that a pass is mirrored.
    ///
    /// # Errors
    /// If the games have fewer rows than one step.
    pub fn new(data: &Dataset, shape: StepShape, mirror: f32, random: Random) -> Result<Self> {
        let all = data.passes();
        let coin = random.stream("mirror");
        let order = random.stream("order").permutation(all.len());
        let pass = |&i: &u32| Pass { mirror: coin.uniform(u64::from(i)) < mirror, ..all[i as usize] };
        let passes: Vec<Pass> = order.iter().map(pass).collect();
        let mut starts = vec![0];
        for pass in &passes {
            starts.push(starts[starts.len() - 1] + data.rows(pass.game));
        }
        let total = starts[starts.len() - 1];
        let steps = total / shape.rows().max(1);
        if steps == 0 {
            let (found, StepShape { lanes, unroll }) = (total, shape);
            return Err(Error::Input(format!("the training games have {found} rows, fewer than one step of {lanes} x {unroll}")));
        }
        let spare = total - steps * shape.rows();
        let offset = random.stream("offset").below(0, spare as u32 + 1) as usize;
        Ok(Self { passes, starts, offset, steps, shape })
    }

    /// Steps of the epoch: the same number in every epoch.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// The rows of one lane in one step.
    pub fn chunk(&self, step: usize, lane: usize) -> Vec<Piece> {
        self.stretch(step..step + 1, lane)
    }

    /// The rows of one lane in consecutive steps of the epoch.
    pub fn stretch(&self, steps: Range<usize>, lane: usize) -> Vec<Piece> {
        let mut place = self.offset + (lane * self.steps + steps.start) * self.shape.unroll;
        let end = place + steps.len() * self.shape.unroll;
        let (mut index, mut at) = (self.starts.partition_point(|&s| s <= place) - 1, 0);
        let mut pieces = Vec::new();
        while place < end {
            let stop = end.min(self.starts[index + 1]);
            let rows = place - self.starts[index]..stop - self.starts[index];
            at += rows.len();
            pieces.push(Piece { pass: self.passes[index], at: at - rows.len(), rows });
            (place, index) = (stop, index + 1);
        }
        pieces
    }
}
