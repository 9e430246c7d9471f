//! The way of a batch's floats to a GPU beside a training step: the data starts in pinned memory of the host.

use super::{Bench, Loop, each_us};
use anyhow::Result;
use candle_core::Device;
use candle_models::cuda::{Staging, Uploader};
use candle_models::random::Random;
use std::time::Instant;

/// Two blocks of host memory, one written while the other is copied, and a step on a batch that is there. What arrives is not read
/// by the step, which is the same with and without it.
pub(super) struct Uploads {
    uploader: Uploader,
    blocks: [Staging; 2],
    bench: Bench,
}

impl Uploads {
    /// As many floats as the batches of a loop have.
    pub fn new(mut bench: Bench, device: &Device) -> Result<Self> {
        bench.work.pause()?;
        let device = device.as_cuda_device()?;
        let len = bench.work.floats();
        let block = |name: &str| -> Result<Staging> {
            let mut block = Staging::new(device, len)?;
            Random::new(8).stream(name).fill_normal(0, block.values()?);
            Ok(block)
        };
        Ok(Self { uploader: Uploader::new(device)?, blocks: [block("first")?, block("second")?], bench })
    }
}

impl Loop for Uploads {
    fn copy(&mut self, steps: usize) -> Result<f64> {
        let start = Instant::now();
        for i in 0..steps {
            let arrived = self.uploader.start(&mut self.blocks[i % 2])?.finish()?;
            self.bench.place.device.synchronize()?;
            drop(arrived);
        }
        Ok(each_us(start, steps))
    }

    fn compute(&mut self, steps: usize) -> Result<f64> {
        self.bench.repeat(steps)
    }

    fn both(&mut self, steps: usize) -> Result<f64> {
        let start = Instant::now();
        let mut under_way = Some(self.uploader.start(&mut self.blocks[0])?);
        for i in 0..steps {
            let arrived = under_way.take().map(|upload| upload.finish()).transpose()?;
            if i + 1 < steps {
                under_way = Some(self.uploader.start(&mut self.blocks[(i + 1) % 2])?);
            }
            self.bench.work.step()?;
            drop(arrived);
        }
        self.bench.place.device.synchronize()?;
        Ok(each_us(start, steps))
    }
}
