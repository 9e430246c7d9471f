//! The order of an epoch over recorded sequences: a pure function of its address.
//!
//! All sequences are laid end to end in random order. The line starts at a random offset and is cut into as many equal lanes as the batch
//! has rows; a step takes the next `unroll` frames of every lane. So a lane meets the end of one sequence and the start of the next inside a
//! chunk, where a reset separates them; every frame comes at most once per epoch, no row is padding, and fewer than one step's rows are left
//! out.
//!
//! ```
//! use candle_models::random::Random;
//! use candle_train::lanes::{Lanes, StepShape};
//!
//! let epoch = |n| Lanes::new(&[50, 30], StepShape { lanes: 2, unroll: 8 }, Random::new(1).at(n));
//! let rows = |n: u64| epoch(n).map(|lanes| lanes.stretch(0..lanes.steps(), 0));
//! assert_eq!(rows(3), rows(3)); // of its address alone
//! assert!(epoch(3).is_some_and(|lanes| lanes.steps() == 5));
//! ```

use candle_models::random::Random;
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

/// Consecutive rows of one sequence inside a stretch of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// Whose rows.
    pub sequence: usize,
    /// Rows of the sequence.
    pub rows: Range<usize>,
    /// Place of the first one in the stretch.
    pub at: usize,
}

/// The order of one epoch.
///
/// ```
/// use candle_models::random::Random;
/// use candle_train::lanes::{Lanes, StepShape};
///
/// // Two sequences of 50 and 30 rows, in steps of two lanes of 8 frames.
/// let shape = StepShape { lanes: 2, unroll: 8 };
/// let lanes = Lanes::new(&[50, 30], shape, Random::new(1).stream("epoch").at(0)).expect("more rows than a step has");
/// assert_eq!((shape.rows(), lanes.steps()), (16, 5));
/// let rows: usize = lanes.stretch(0..1, 0).iter().map(|stretch| stretch.rows.len()).sum();
/// assert_eq!(rows, 8); // a lane's part of the first step
/// ```
#[derive(Debug)]
pub struct Lanes {
    order: Vec<u32>,
    /// Where each sequence starts on the line, in its order, and the line's length.
    starts: Vec<usize>,
    offset: usize,
    steps: usize,
    shape: StepShape,
}

impl Lanes {
    /// The order of the epoch that `random` is the address of, over sequences of such lengths; `None` if together they have fewer rows than
    /// one step.
    pub fn new(lengths: &[usize], shape: StepShape, random: Random) -> Option<Self> {
        let order = random.stream("order").permutation(lengths.len());
        let mut starts = vec![0];
        for sequence in &order {
            starts.push(starts[starts.len() - 1] + lengths[*sequence as usize]);
        }
        let total = starts[starts.len() - 1];
        let steps = total / shape.rows().max(1);
        let spare = total - steps * shape.rows();
        let offset = random.stream("offset").below(0, spare as u32 + 1) as usize;
        (steps > 0).then_some(Self { order, starts, offset, steps, shape })
    }

    /// Steps of the epoch: the same number in every epoch.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// The rows of one lane in consecutive steps of the epoch.
    pub fn stretch(&self, steps: Range<usize>, lane: usize) -> Vec<Stretch> {
        let mut place = self.offset + (lane * self.steps + steps.start) * self.shape.unroll;
        let end = place + steps.len() * self.shape.unroll;
        let (mut index, mut at) = (self.starts.partition_point(|&s| s <= place) - 1, 0);
        let mut pieces = Vec::new();
        while place < end {
            let stop = end.min(self.starts[index + 1]);
            let rows = place - self.starts[index]..stop - self.starts[index];
            at += rows.len();
            pieces.push(Stretch { sequence: self.order[index] as usize, at: at - rows.len(), rows });
            (place, index) = (stop, index + 1);
        }
        pieces
    }
}

/// The order of epoch after epoch: which rows make which batch.
#[derive(Debug)]
pub struct Epochs {
    lengths: Vec<usize>,
    shape: StepShape,
    random: Random,
    /// The epoch that was asked for last, and its order.
    current: (u64, Lanes),
}

/// Consecutive rows of one sequence in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Whose rows.
    pub sequence: usize,
    /// Rows of the sequence.
    pub rows: Range<usize>,
    /// Place of the first one in the batch, lane by lane.
    pub at: usize,
    /// Whether nothing is remembered before the first one: there the sequence begins, or its lane does.
    pub resets: bool,
}

impl Epochs {
    /// Of sequences of such lengths; `None` if together they have fewer rows than one step. `random` is the address of all epochs.
    pub fn new(lengths: Vec<usize>, shape: StepShape, random: Random) -> Option<Self> {
        let first = Lanes::new(&lengths, shape, random.stream("epoch").at(0))?;
        Some(Self { lengths, shape, random, current: (0, first) })
    }

    /// Batches of an epoch.
    pub fn batches(&self) -> u64 {
        self.current.1.steps() as u64
    }

    /// What some lanes of batch `number` hold. `at` counts from the first of these lanes.
    pub fn batch(&mut self, number: u64, lanes: Range<usize>) -> Vec<Piece> {
        let (epoch, step) = (number / self.batches(), (number % self.batches()) as usize);
        if self.current.0 != epoch
            && let Some(order) = Lanes::new(&self.lengths, self.shape, self.random.stream("epoch").at(epoch))
        {
            self.current = (epoch, order);
        }
        let mut pieces = Vec::new();
        for (place, lane) in lanes.enumerate() {
            for Stretch { sequence, rows, at } in self.current.1.stretch(step..step + 1, lane) {
                // A lane that begins in the middle of a sequence begins without memory.
                let resets = rows.start == 0 || (step == 0 && at == 0);
                pieces.push(Piece { sequence, rows, at: place * self.shape.unroll + at, resets });
            }
        }
        pieces
    }
}
