//! Batches, made ahead on a thread of their own.

use super::dataset::{Buffers, Dataset};
use super::plan::{Epoch, StepShape};
use candle_core::{Device, Tensor};
use candle_models::policy::actions::ACTION;
use candle_models::policy::embedding::{IDS, WIDTH};
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Batches that wait for the trainer at most.
const AHEAD: usize = 3;

/// The next batch to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Step of the epoch, from 0.
    pub step: u64,
}

/// What comes after the last batch of an epoch, or after any batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The next one; epoch after epoch.
    Epochs,
    /// The first one again and again, to see whether the model can learn it by heart.
    FirstBatch,
}

/// How batches are made.
#[derive(Debug, Clone)]
pub struct LoaderConfig {
    /// Rows of a batch, all ranks together.
    pub shape: StepShape,
    /// Which of its lanes are read.
    pub lanes: Range<usize>,
    /// Probability that a pass is mirrored.
    pub mirror: f32,
    /// Frames without loss after a lane starts in the middle of a game.
    pub burn_in: usize,
    /// Which batches.
    pub order: Order,
    /// Address of all random choices.
    pub random: Random,
}

/// One micro batch's data, or a rank's share of it: B lanes of T rows, on the host.
#[derive(Debug)]
pub struct Batch {
    /// The policy's inputs, `[B, T, ...]`.
    pub inputs: NamedTensors,
    /// Whether a row starts anew, lane by lane.
    pub resets: Vec<bool>,
    /// Weight of each row in the loss, `[B * T]`.
    pub weights: Tensor,
    /// Discounted returns, `[B * T]`.
    pub returns: Tensor,
    /// Rows of the batch before these.
    pub first_row: usize,
    /// Number of the batch since the first epoch: the address of its noise.
    pub number: u64,
    /// The batch after this one.
    pub next: Cursor,
}

/// Hands out batches in order.
#[derive(Debug)]
pub struct Loader {
    data: Arc<Dataset>,
    config: LoaderConfig,
    steps: u64,
    cursor: Cursor,
    batches: Option<Receiver<Result<Batch>>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// A loader at the first batch. Nothing is read before the first [`Self::next`].
    pub fn new(data: Arc<Dataset>, config: LoaderConfig) -> Result<Self> {
        let steps = epoch(&data, &config, 0)?.steps() as u64;
        let cursor = Cursor::default();
        Ok(Self { data, config, steps, cursor, batches: None, thread: None })
    }

    /// Batches of an epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps
    }

    /// The batch that comes next.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The lanes that are read.
    pub fn lanes(&self) -> Range<usize> {
        self.config.lanes.clone()
    }

    /// Rows of a batch, all ranks together.
    pub fn rows(&self) -> usize {
        self.config.shape.rows()
    }

    /// Whether the same batch comes again and again.
    pub fn repeats(&self) -> bool {
        self.config.order == Order::FirstBatch
    }

    /// Goes to another batch.
    pub fn seek(&mut self, cursor: Cursor) -> Result<()> {
        if cursor.step >= self.steps {
            return Err(Error::Input(format!("batch {} of an epoch of {} batches: is the data another one?", cursor.step, self.steps)));
        }
        self.stop();
        self.cursor = cursor;
        Ok(())
    }

    /// The next batch, and how long it kept the caller waiting.
    #[allow(clippy::should_implement_trait)] // Not an iterator: it never ends, and it fails.
    pub fn next(&mut self) -> Result<(Batch, Duration)> {
        let start = Instant::now();
        let batches = match self.batches.take() {
            Some(batches) => batches,
            None => self.start()?,
        };
        let batches = self.batches.insert(batches);
        let batch = batches.recv().map_err(|_| Error::Input("the loader's thread ended".to_owned()))??;
        self.cursor = batch.next;
        Ok((batch, start.elapsed()))
    }

    fn start(&mut self) -> Result<Receiver<Result<Batch>>> {
        let (sender, receiver) = sync_channel(AHEAD);
        let (data, config, mut cursor) = (self.data.clone(), self.config.clone(), self.cursor);
        let work = move || {
            let mut plan: Option<(u64, Epoch)> = None;
            loop {
                let batch = make(&data, &config, &mut plan, cursor);
                let next = batch.as_ref().map(|b| b.next).ok();
                // The receiver is gone when the trainer is done or seeks.
                let (Ok(()), Some(next)) = (sender.send(batch), next) else { return };
                cursor = next;
            }
        };
        let thread = std::thread::Builder::new().name("loader".into()).spawn(work);
        self.thread = Some(thread.map_err(|e| Error::Input(format!("cannot start the loader's thread: {e}")))?);
        Ok(receiver)
    }

    fn stop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.stop();
    }
}

fn epoch(data: &Dataset, config: &LoaderConfig, number: u64) -> Result<Epoch> {
    Epoch::new(data, config.shape, config.mirror, config.random.stream("epoch").at(number))
}

fn make(data: &Dataset, config: &LoaderConfig, plan: &mut Option<(u64, Epoch)>, cursor: Cursor) -> Result<Batch> {
    let plan = match plan {
        Some((number, plan)) if *number == cursor.epoch => plan,
        _ => &plan.insert((cursor.epoch, epoch(data, config, cursor.epoch)?)).1,
    };
    let (lanes, unroll) = (config.lanes.clone(), config.shape.unroll);
    let (first_row, n) = (lanes.start * unroll, lanes.len() * unroll);
    let (mut rows, mut resets, mut weights) = (Buffers::zeros(n), vec![false; n], vec![1f32; n]);
    for lane in lanes.clone() {
        for piece in plan.chunk(cursor.step as usize, lane) {
            let start = lane * unroll - first_row + piece.at;
            let end = start + piece.rows.len();
            let lane_start = cursor.step == 0 && piece.at == 0;
            resets[start] = piece.rows.start == 0 || lane_start;
            if lane_start && piece.rows.start > 0 {
                weights[start..end.min(start + config.burn_in)].fill(0.0);
            }
            data.read(piece.pass, piece.rows, rows.rows(start..end))?;
        }
    }
    let last = cursor.step + 1 == plan.steps() as u64;
    let next = match config.order {
        Order::FirstBatch => cursor,
        Order::Epochs if last => Cursor { epoch: cursor.epoch + 1, step: 0 },
        Order::Epochs => Cursor { step: cursor.step + 1, ..cursor },
    };
    let number = cursor.epoch * plan.steps() as u64 + cursor.step;
    let weights = Tensor::from_vec(weights, n, &Device::Cpu)?;
    let returns = Tensor::from_vec(std::mem::take(&mut rows.returns), n, &Device::Cpu)?;
    Ok(Batch { inputs: inputs(rows, lanes.len(), unroll)?, resets, weights, returns, first_row, number, next })
}

/// The policy's inputs `[lanes, unroll, ...]`, on the host.
pub(crate) fn inputs(rows: Buffers, lanes: usize, unroll: usize) -> Result<NamedTensors> {
    let device = &Device::Cpu;
    let actions = |ids: Vec<u32>| Tensor::from_vec(ids, (lanes, unroll, ACTION), device);
    let mut inputs = NamedTensors::new();
    inputs.insert("features", Tensor::from_vec(rows.features, (lanes, unroll, WIDTH), device)?);
    inputs.insert("ids", Tensor::from_vec(rows.ids, (lanes, unroll, IDS), device)?);
    inputs.insert("previous_action", actions(rows.previous)?);
    inputs.insert("action", actions(rows.action)?);
    inputs.insert("uniform", Tensor::zeros((lanes, unroll, ACTION), candle_core::DType::F32, device)?);
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::shards::testing;
    use std::collections::HashMap;

    fn loader(data: &Arc<Dataset>, seed: u64) -> Loader {
        let shape = StepShape { lanes: 3, unroll: 10 };
        let config = LoaderConfig { shape, lanes: 0..3, mirror: 0.5, burn_in: 4, order: Order::Epochs, random: Random::new(seed) };
        Loader::new(data.clone(), config).unwrap()
    }

    fn data() -> Arc<Dataset> {
        Arc::new(Dataset::new(&testing::shards(&[40, 75, 33]), &[], 2).unwrap())
    }

    /// Everything of a batch as bits.
    fn bits(batch: &Batch) -> Vec<u32> {
        let mut bits: Vec<u32> = batch.resets.iter().map(|&r| r.into()).collect();
        for tensor in batch.inputs.iter().map(|t| t.1).chain([&batch.weights, &batch.returns]) {
            let tensor = tensor.flatten_all().unwrap();
            match tensor.to_vec1::<u32>() {
                Ok(ids) => bits.extend(ids),
                Err(_) => bits.extend(tensor.to_vec1::<f32>().unwrap().iter().map(|v| v.to_bits())),
            }
        }
        bits
    }

    #[test]
    fn a_batch_depends_on_seed_and_place_only() {
        let data = data();
        let mut first = loader(&data, 1);
        let steps = first.steps_per_epoch();
        // 2 players x (40 + 75 + 33 frames, 1 + 2 fewer rows each).
        assert_eq!(steps, 2 * (148 - 9) / 30);
        let batches: Vec<_> = (0..3 * steps).map(|_| first.next().unwrap().0).collect();
        assert!(batches.iter().zip(0..).all(|(b, i)| b.number == i));
        for start in [1, steps - 1, steps, 2 * steps + 3] {
            let mut second = loader(&data, 1);
            second.seek(batches[start as usize - 1].next).unwrap();
            for batch in &batches[start as usize..] {
                assert_eq!(bits(&second.next().unwrap().0), bits(batch), "from batch {start}");
            }
        }
        assert_ne!(bits(&loader(&data, 2).next().unwrap().0), bits(&batches[0]));
        assert_ne!(bits(&batches[steps as usize]), bits(&batches[0]), "another epoch has another order");
        assert!(first.seek(Cursor { epoch: 0, step: steps }).is_err());
    }

    #[test]
    fn every_row_comes_at_most_once_per_epoch_and_in_order() {
        let data = data();
        for number in 0..20 {
            let plan = Epoch::new(&data, StepShape { lanes: 3, unroll: 10 }, 0.5, Random::new(5).at(number)).unwrap();
            let mut seen: HashMap<(usize, usize, usize), usize> = HashMap::new();
            for lane in 0..3 {
                let mut before = None;
                for step in 0..plan.steps() {
                    let pieces = plan.chunk(step, lane);
                    assert_eq!(pieces.iter().map(|p| p.rows.len()).sum::<usize>(), 10);
                    for piece in pieces {
                        if piece.rows.start > 0 && before.is_some() {
                            assert_eq!(before, Some((piece.pass, piece.rows.start)), "a lane continues where it was");
                        }
                        before = Some((piece.pass, piece.rows.end));
                        assert!(piece.rows.end <= data.rows(piece.pass.game));
                        for row in piece.rows {
                            *seen.entry((piece.pass.game, piece.pass.player, row)).or_default() += 1;
                        }
                    }
                }
            }
            assert!(seen.values().all(|&n| n == 1));
            assert_eq!(seen.len(), plan.steps() * 30, "all but the rest of less than a step");
        }
    }

    #[test]
    fn resets_and_burn_in_mark_the_starts() {
        let data = data();
        let mut loader = loader(&data, 9);
        for step in 0..loader.steps_per_epoch() {
            let plan = Epoch::new(&data, StepShape { lanes: 3, unroll: 10 }, 0.5, Random::new(9).stream("epoch").at(0)).unwrap();
            let batch = loader.next().unwrap().0;
            let weights = batch.weights.to_vec1::<f32>().unwrap();
            for lane in 0..3 {
                let pieces = plan.chunk(step as usize, lane);
                for at in 0..10 {
                    let piece = pieces.iter().find(|p| (p.at..p.at + p.rows.len()).contains(&at)).unwrap();
                    let row = piece.rows.start + at - piece.at;
                    let lane_start = step == 0 && at == 0;
                    assert_eq!(batch.resets[lane * 10 + at], row == 0 || lane_start);
                    let cold = step == 0 && piece.at == 0 && piece.rows.start > 0 && at < 4;
                    assert_eq!(weights[lane * 10 + at], if cold { 0.0 } else { 1.0 });
                }
            }
        }
    }

    #[test]
    fn the_first_batch_can_come_again_and_again() {
        let data = data();
        let mut loader = loader(&data, 1);
        loader.config.order = Order::FirstBatch;
        let first = bits(&loader.next().unwrap().0);
        assert!((0..5).all(|_| bits(&loader.next().unwrap().0) == first));
    }

    #[test]
    fn too_little_data_is_an_error() {
        let shards = testing::shards(&[12]);
        let data = Arc::new(Dataset::new(&shards, &[], 0).unwrap());
        let shape = StepShape { lanes: 3, unroll: 10 };
        let config = LoaderConfig { shape, lanes: 0..3, mirror: 0.0, burn_in: 0, order: Order::Epochs, random: Random::new(1) };
        let error = Loader::new(data, config).unwrap_err().to_string();
        assert_eq!(error, "the training games have 22 rows, fewer than one step of 3 x 10");
    }
}
