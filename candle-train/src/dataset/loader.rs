//! Batches of a data set, made ahead on a thread of their own.

use super::Dataset;
use crate::lanes::{Epochs, Piece, StepShape};
use crate::parallel::{Communicator, share};
use crate::prefetch::{Prefetch, Source};
use candle_core::{DType, Device};
use candle_models::random::Random;
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Which rows make a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// So many rows of all that there are, each once in an epoch, in random order. Takes 4 bytes of memory for each row of the set.
    Rows(usize),
    /// Rows of episodes in their order, to carry state along: see [`lanes`](crate::lanes).
    Lanes(StepShape),
}

impl Order {
    fn rows(self) -> usize {
        match self {
            Self::Rows(rows) => rows,
            Self::Lanes(shape) => shape.rows(),
        }
    }
}

/// One micro batch, or a rank's share of it.
#[derive(Debug)]
pub struct Batch {
    /// The tensors by name, `[n, ...]`, or `[lanes, unroll, ...]` of lanes. Floats lie on the loader's device, indices on the host.
    pub tensors: NamedTensors,
    /// Whether state is forgotten before a row, lane by lane. Rows in random order always start anew.
    pub resets: Vec<bool>,
    /// Its share of the whole micro batch: what its [`Loss`](crate::task::Loss) weighs.
    pub weight: f64,
}

/// Hands out batches of a data set by their numbers. Ranks take a part of each batch's rows or lanes.
pub struct Loader {
    batches: Prefetch<Reader>,
    per_epoch: u64,
    order: Order,
    share: Range<usize>,
}

impl Loader {
    /// Of a data set in that order, addressed by `random`, for this rank and device. Nothing is read before the first batch is asked for.
    ///
    /// # Errors
    /// If a batch has nothing for one of the ranks, or more rows than there are.
    pub fn new(data: Arc<Dataset>, order: Order, random: Random, ranks: &dyn Communicator, device: &Device) -> Result<Self> {
        let (units, what) = match order {
            Order::Rows(rows) => (rows, "rows"),
            Order::Lanes(shape) => (shape.lanes, "lanes"),
        };
        if units < ranks.size() {
            return Err(Error::config("batch", format!("{units} {what} cannot be shared by {} ranks", ranks.size())));
        }
        let too_few = || Error::config("batch", format!("{} rows of the data set are fewer than a batch of {}", data.rows(), order.rows()));
        let share = share(units, ranks.rank(), ranks.size());
        let (plan, per_epoch) = match order {
            Order::Rows(rows) => {
                if data.rows() as u64 > 1 << 32 {
                    return Err(Error::config("batch", format!("expected at most 2^32 rows to be drawn, found {}", data.rows())));
                }
                (Plan::Rows { rows, random, epoch: None }, (data.rows() / rows) as u64)
            }
            Order::Lanes(shape) => {
                let lengths = data.parts().iter().flat_map(|part| part.episodes().iter().map(Range::len)).collect();
                let epochs = Epochs::new(lengths, shape, random).ok_or_else(too_few)?;
                let per_epoch = epochs.batches();
                (Plan::Lanes(epochs, shape.unroll), per_epoch)
            }
        };
        if per_epoch == 0 {
            return Err(too_few());
        }
        let episodes = data.parts().iter().zip(&data.starts).flat_map(|(part, start)| part.episodes().iter().map(move |e| start + e.start));
        let episodes = if matches!(order, Order::Lanes(_)) { episodes.collect() } else { Vec::new() };
        let reader = Reader { data, plan, share: share.clone(), per_epoch, episodes };
        Ok(Self { batches: Prefetch::new(reader, device), per_epoch, order, share })
    }

    /// Batches of an epoch. Rows that do not fill one more are left out of it.
    pub fn batches_per_epoch(&self) -> u64 {
        self.per_epoch
    }

    /// Which rows, or lanes, of a batch are this rank's: as many states are carried.
    pub fn share(&self) -> Range<usize> {
        self.share.clone()
    }

    /// Batch `number` since the run began: see [`Context::batch`](crate::task::Context::batch).
    ///
    /// # Errors
    /// As [`Dataset::read`], or if the device fails.
    pub fn get(&mut self, number: u64) -> Result<Batch> {
        let (tensors, resets) = self.batches.get(number)?;
        let weight = resets.len() as f64 / self.order.rows() as f64;
        Ok(Batch { tensors, resets, weight })
    }
}

/// Which rows come when.
enum Plan {
    Rows {
        rows: usize,
        random: Random,
        /// The epoch that was read last, and its order.
        epoch: Option<(u64, Vec<u32>)>,
    },
    /// And the frames of a lane.
    Lanes(Epochs, usize),
}

/// Reads a rank's part of batches.
struct Reader {
    data: Arc<Dataset>,
    plan: Plan,
    share: Range<usize>,
    per_epoch: u64,
    /// The first row of each episode, counted through all files.
    episodes: Vec<usize>,
}

impl Reader {
    /// What a batch holds: rows counted through all files, where they come in the batch, and whether state is forgotten before them.
    fn pieces(&mut self, number: u64) -> Vec<Piece> {
        match &mut self.plan {
            Plan::Rows { rows, random, epoch } => {
                let (wanted, batch) = (number / self.per_epoch, (number % self.per_epoch) as usize);
                let order = match epoch.take_if(|(known, _)| *known == wanted) {
                    Some((_, order)) => order,
                    None => random.stream("epoch").at(wanted).permutation(self.data.rows()),
                };
                let (_, order) = epoch.insert((wanted, order));
                let of_batch = &order[batch * *rows..][self.share.clone()];
                let piece = |(at, row): (usize, &u32)| Piece { sequence: 0, rows: *row as usize..*row as usize + 1, at, resets: true };
                of_batch.iter().enumerate().map(piece).collect()
            }
            Plan::Lanes(epochs, _) => {
                let mut pieces = epochs.batch(number, self.share.clone());
                for piece in &mut pieces {
                    let first = self.episodes[piece.sequence];
                    piece.rows = first + piece.rows.start..first + piece.rows.end;
                }
                pieces
            }
        }
    }
}

impl Source for Reader {
    /// Whether state is forgotten before each row.
    type Host = Vec<bool>;

    fn tensors(&self) -> Vec<TensorSpec> {
        let leading = match &self.plan {
            Plan::Rows { .. } => vec![self.share.len()],
            Plan::Lanes(_, unroll) => vec![self.share.len(), *unroll],
        };
        let batched = |spec: &TensorSpec| {
            let shape = [&leading, &spec.shape[..]].concat();
            if spec.dtype() == DType::F32 { TensorSpec::f32(&spec.name, &shape) } else { TensorSpec::u32(&spec.name, &shape) }
        };
        self.data.specs().iter().map(batched).collect()
    }

    fn make(&mut self, number: u64, floats: &mut [&mut [f32]], indices: &mut [&mut [u32]]) -> Result<Vec<bool>> {
        let pieces = self.pieces(number);
        let mut resets = vec![false; pieces.iter().map(|piece| piece.rows.len()).sum()];
        for Piece { rows, at, resets: begins, .. } in pieces {
            resets[at] = begins;
            // An episode lies in one file.
            let (part, first) = self.data.place(rows.start);
            let (mut floats, mut indices) = (floats.iter_mut(), indices.iter_mut());
            for (tensor, spec) in self.data.specs().iter().enumerate() {
                let (place, values) = ((part, tensor), at * spec.width()..(at + rows.len()) * spec.width());
                let rows = first..first + rows.len();
                match spec.dtype() {
                    DType::F32 => floats.next().map_or(Ok(()), |out| self.data.read(place, rows, &mut out[values]))?,
                    _ => indices.next().map_or(Ok(()), |out| self.data.read(place, rows, &mut out[values]))?,
                }
            }
        }
        Ok(resets)
    }
}
