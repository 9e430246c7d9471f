//! Batches of recorded games, made ahead on a thread of their own.

use super::dataset::{Buffers, Dataset, Rows};
use super::plan::{Epoch, StepShape};
use crate::prefetch::{Prefetch, Source};
use candle_core::{DType, Device, Tensor};
use candle_models::policy::actions::ACTION;
use candle_models::policy::embedding::{IDS, WIDTH};
use candle_models::random::Random;
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps whose rows are asked of the disk at a time, one such stretch before they are read: a lane's rows of so many steps are one
/// read of some 300 KB at 60 frames a step, and all lanes' reads are under way together.
const STRETCH: usize = 8;
/// The tensors of floats and of indices of a batch.
const FLOATS: [&str; 3] = ["features", "returns", "weights"];
const INDICES: [(&str, usize); 3] = [("ids", IDS), ("previous_action", ACTION), ("action", ACTION)];

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

/// One micro batch's data, or a rank's share of it: B lanes of T rows. Floats lie on the loader's device, indices on the host.
#[derive(Debug)]
pub struct Batch {
    /// The policy's inputs, `[B, T, ...]`.
    pub inputs: NamedTensors,
    /// Whether a row starts anew, lane by lane.
    pub resets: Vec<bool>,
    /// Weight of each row in the loss, `[B * T]`.
    pub weights: Tensor,
    /// The sum of the weights.
    pub weight: f32,
    /// Discounted returns, `[B * T]`.
    pub returns: Tensor,
    /// Rows of the batch before these.
    pub first_row: usize,
    /// Number of the batch since the first epoch: the address of its noise.
    pub number: u64,
    /// The batch after this one.
    pub next: Cursor,
}

/// What the thread makes of a batch beside its tensors.
struct Made {
    resets: Vec<bool>,
    weight: f32,
    number: u64,
    next: Cursor,
}

/// Reads the batches of some lanes.
struct LaneReader {
    data: Arc<Dataset>,
    config: LoaderConfig,
    /// Batches of an epoch.
    steps: u64,
    reading: Option<Reading>,
}

impl Source for LaneReader {
    type Host = Made;

    fn tensors(&self) -> Vec<TensorSpec> {
        let (lanes, unroll) = (self.config.lanes.len(), self.config.shape.unroll);
        let shapes = [&[lanes, unroll, WIDTH] as &[usize], &[lanes * unroll], &[lanes * unroll]];
        let floats = FLOATS.into_iter().zip(shapes).map(|(name, shape)| TensorSpec::f32(name, shape));
        floats.chain(INDICES.map(|(name, width)| TensorSpec::u32(name, &[lanes, unroll, width]))).collect()
    }

    fn make(&mut self, number: u64, floats: &mut [&mut [f32]], indices: &mut [&mut [u32]]) -> Result<Made> {
        let ([features, returns, weights], [ids, previous, action]) = (floats, indices) else {
            return Err(Error::Input("tensors of another batch".to_owned()));
        };
        let cursor = match self.config.order {
            Order::Epochs => Cursor { epoch: number / self.steps, step: number % self.steps },
            Order::FirstBatch => Cursor::default(),
        };
        let rows = Rows { features, ids, previous, action, returns };
        make((&self.data, &self.config), &mut self.reading, cursor, (rows, weights))
    }
}

/// Hands out batches in order.
pub struct Loader {
    data: Arc<Dataset>,
    config: LoaderConfig,
    device: Device,
    steps: u64,
    cursor: Cursor,
    /// From the first batch on; and the policy's noise for sampling, which imitation has no use for.
    running: Option<(Prefetch<LaneReader>, Tensor)>,
}

impl Loader {
    /// A loader at the first batch, for the CPU. Nothing is read before the first [`Self::next`].
    pub fn new(data: Arc<Dataset>, config: LoaderConfig) -> Result<Self> {
        let steps = epoch(&data, &config, 0)?.steps() as u64;
        let (device, cursor) = (Device::Cpu, Cursor::default());
        Ok(Self { data, config, device, steps, cursor, running: None })
    }

    /// The same loader for another device: the floats of its batches lie there, copied while the batch before is computed.
    pub fn on(self, device: &Device) -> Self {
        Self { device: device.clone(), running: None, ..self }
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
        self.running = None;
        self.cursor = cursor;
        Ok(())
    }

    /// The next batch, and how long it kept the caller waiting.
    #[allow(clippy::should_implement_trait)] // Not an iterator: it never ends, and it fails.
    pub fn next(&mut self) -> Result<(Batch, Duration)> {
        let start = Instant::now();
        let (mut batches, uniform) = match self.running.take() {
            Some(running) => running,
            None => self.start()?,
        };
        let number = self.cursor.epoch * self.steps + self.cursor.step;
        // Whatever its number, the first batch comes: only the one after the last was made ahead.
        let (tensors, made) = if self.repeats() { batches.next()? } else { batches.get(number)? };
        let batch = self.batch(tensors, made, &uniform)?;
        self.running = Some((batches, uniform));
        self.cursor = batch.next;
        Ok((batch, start.elapsed()))
    }

    fn start(&self) -> Result<(Prefetch<LaneReader>, Tensor)> {
        let reader = LaneReader { data: self.data.clone(), config: self.config.clone(), steps: self.steps, reading: None };
        let uniform = Tensor::zeros((self.config.lanes.len(), self.config.shape.unroll, ACTION), DType::F32, &self.device)?;
        Ok((Prefetch::new(reader, &self.device), uniform))
    }

    fn batch(&self, tensors: NamedTensors, made: Made, uniform: &Tensor) -> Result<Batch> {
        let Made { resets, weight, number, next } = made;
        let [returns, weights] = ["returns", "weights"].map(|name| tensors.get(name).cloned());
        let of_the_loss = |name: &str| ["returns", "weights"].contains(&name);
        let mut inputs: NamedTensors = tensors.into_iter().filter(|(name, _)| !of_the_loss(name)).collect();
        inputs.insert("uniform", uniform.clone());
        let first_row = self.config.lanes.start * self.config.shape.unroll;
        Ok(Batch { inputs, resets, weights: weights?, weight, returns: returns?, first_row, number, next })
    }
}

fn epoch(data: &Dataset, config: &LoaderConfig, number: u64) -> Result<Epoch> {
    Epoch::new(data, config.shape, config.mirror, config.random.stream("epoch").at(number))
}

/// An epoch, as far as its rows were asked of the disk.
struct Reading {
    number: u64,
    epoch: Epoch,
    asked: usize,
}

impl Reading {
    fn new(data: &Dataset, config: &LoaderConfig, Cursor { epoch: number, step }: Cursor) -> Result<Self> {
        Ok(Self { number, epoch: epoch(data, config, number)?, asked: step as usize })
    }

    /// Asks for what is read in this step's stretch and the next one.
    fn ask(&mut self, data: &Dataset, lanes: Range<usize>, step: usize) {
        while self.asked <= step + STRETCH && self.asked < self.epoch.steps() {
            let steps = self.asked..self.epoch.steps().min(self.asked + STRETCH);
            self.asked = steps.end;
            for piece in lanes.clone().flat_map(|lane| self.epoch.stretch(steps.clone(), lane)) {
                data.expect(piece.pass, piece.rows);
            }
        }
    }
}

fn make(
    (data, config): (&Dataset, &LoaderConfig),
    reading: &mut Option<Reading>,
    cursor: Cursor,
    (mut rows, weights): (Rows, &mut [f32]),
) -> Result<Made> {
    let reading = match reading {
        Some(reading) if reading.number == cursor.epoch => reading,
        _ => reading.insert(Reading::new(data, config, cursor)?),
    };
    let (lanes, unroll) = (config.lanes.clone(), config.shape.unroll);
    reading.ask(data, lanes.clone(), cursor.step as usize);
    let plan = &reading.epoch;
    let (first_row, n) = (lanes.start * unroll, lanes.len() * unroll);
    weights.fill(1.0);
    let mut resets = vec![false; n];
    for lane in lanes.clone() {
        for piece in plan.chunk(cursor.step as usize, lane) {
            let start = lane * unroll - first_row + piece.at;
            let end = start + piece.rows.len();
            let lane_start = cursor.step == 0 && piece.at == 0;
            resets[start] = piece.rows.start == 0 || lane_start;
            if lane_start && piece.rows.start > 0 {
                weights[start..end.min(start + config.burn_in)].fill(0.0);
            }
            data.read(piece.pass, piece.rows, rows.part(start..end))?;
        }
    }
    let last = cursor.step + 1 == plan.steps() as u64;
    let next = match config.order {
        Order::FirstBatch => cursor,
        Order::Epochs if last => Cursor { epoch: cursor.epoch + 1, step: 0 },
        Order::Epochs => Cursor { step: cursor.step + 1, ..cursor },
    };
    let number = cursor.epoch * plan.steps() as u64 + cursor.step;
    Ok(Made { resets, weight: weights.iter().sum(), number, next })
}

/// The policy's inputs `[lanes, unroll, ...]`, on the host.
pub(crate) fn inputs(rows: Buffers, lanes: usize, unroll: usize) -> Result<NamedTensors> {
    let mut inputs = NamedTensors::new();
    inputs.insert("features", Tensor::from_vec(rows.features, (lanes, unroll, WIDTH), &Device::Cpu)?);
    inputs.insert("uniform", Tensor::zeros((lanes, unroll, ACTION), DType::F32, &Device::Cpu)?);
    for ((name, width), values) in INDICES.into_iter().zip([rows.ids, rows.previous, rows.action]) {
        inputs.insert(name, Tensor::from_vec(values, (lanes, unroll, width), &Device::Cpu)?);
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::shards::testing;
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
                let all: usize = plan.stretch(0..plan.steps(), lane).iter().map(|p| p.rows.len()).sum();
                assert_eq!(all, plan.steps() * 10);
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
            assert_eq!(batch.weight, weights.iter().sum::<f32>());
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
        let error = Loader::new(data, config).map(drop).unwrap_err().to_string();
        assert_eq!(error, "the training games have 22 rows, fewer than one step of 3 x 10");
    }
}
