//! How a batch's floats get from the thread that makes them to the device.
//!
//! On the CPU they are a vector that becomes a tensor. On CUDA the thread writes into one of a few pinned blocks; the trainer
//! starts the copy a batch ahead, on a stream of its own, and gives the block back, which the thread writes again when the copy
//! is done. So the trainer waits for no copy, and one thread gives the device its work.

use candle_core::{Device, Tensor};
use candle_models::Result;
#[cfg(feature = "cuda")]
use {
    candle_models::cuda::{Staging, Upload, Uploader},
    std::sync::mpsc::{Receiver, Sender, channel},
};

/// Memory of the host for the floats of a batch.
pub(super) enum Block {
    Host(Vec<f32>),
    #[cfg(feature = "cuda")]
    Pinned(Staging),
}

impl Block {
    /// The values, to be written.
    pub fn values(&mut self) -> Result<&mut [f32]> {
        match self {
            Self::Host(values) => Ok(values),
            #[cfg(feature = "cuda")]
            Self::Pinned(staging) => Ok(staging.values()?),
        }
    }
}

/// The side of the thread that makes batches: blocks for so many floats.
pub(super) enum Blocks {
    Host(usize),
    /// `left` blocks may still be made, then one has to come back.
    #[cfg(feature = "cuda")]
    Pinned {
        device: candle_core::CudaDevice,
        len: usize,
        left: usize,
        back: Receiver<Staging>,
    },
}

impl Blocks {
    /// A block; `None` when the trainer's side is gone.
    pub fn next(&mut self) -> Result<Option<Block>> {
        match self {
            Self::Host(len) => Ok(Some(Block::Host(vec![0.0; *len]))),
            #[cfg(feature = "cuda")]
            Self::Pinned { device, len, left, back } => {
                if let Ok(block) = back.try_recv() {
                    return Ok(Some(Block::Pinned(block)));
                }
                if *left == 0 {
                    return Ok(back.recv().ok().map(Block::Pinned));
                }
                *left -= 1;
                Ok(Some(Block::Pinned(Staging::new(device, *len)?)))
            }
        }
    }
}

/// The trainer's side.
pub(super) enum Uploads {
    Host,
    #[cfg(feature = "cuda")]
    Ahead {
        uploader: Uploader,
        back: Sender<Staging>,
    },
}

/// Floats on their way to the device.
pub(super) enum Uploading {
    Host(Tensor),
    #[cfg(feature = "cuda")]
    Device(Upload),
}

/// Both sides, for batches of `len` floats, `blocks` of them in pinned memory.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
pub(super) fn between(device: &Device, len: usize, blocks: usize) -> Result<(Uploads, Blocks)> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) if len > 0 => {
            let (give_back, back) = channel();
            let uploads = Uploads::Ahead { uploader: Uploader::new(device)?, back: give_back };
            Ok((uploads, Blocks::Pinned { device: device.clone(), len, left: blocks, back }))
        }
        _ => Ok((Uploads::Host, Blocks::Host(len))),
    }
}

impl Uploads {
    /// Whether copies are started before they are asked for.
    pub fn are_ahead(&self) -> bool {
        !matches!(self, Self::Host)
    }

    /// Starts a copy. Waits for nothing.
    pub fn start(&self, block: Block) -> Result<Uploading> {
        match (self, block) {
            (_, Block::Host(values)) => {
                let len = values.len();
                Ok(Uploading::Host(Tensor::from_vec(values, len, &Device::Cpu)?))
            }
            #[cfg(feature = "cuda")]
            (Self::Ahead { uploader, back }, Block::Pinned(mut block)) => {
                let upload = uploader.start(&mut block)?;
                // The thread may have ended by an error, which comes after this batch; nobody needs the block then.
                let _ = back.send(block);
                Ok(Uploading::Device(upload))
            }
            #[cfg(feature = "cuda")]
            (Self::Host, Block::Pinned(_)) => Err(candle_models::Error::Input("a pinned block without a device".to_owned())),
        }
    }
}

impl Uploading {
    /// The floats `[len]`, on the device. The host does not wait.
    pub fn finish(self) -> Result<Tensor> {
        match self {
            Self::Host(tensor) => Ok(tensor),
            #[cfg(feature = "cuda")]
            Self::Device(upload) => Ok(upload.finish()?),
        }
    }
}
