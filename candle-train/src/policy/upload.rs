//! The way of a batch's floats from the loader's thread to the device.
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

/// The floats of a batch, on the host.
pub(super) enum Floats {
    Host(Vec<f32>),
    #[cfg(feature = "cuda")]
    Pinned(Staging),
}

impl Floats {
    /// The values, to be written.
    pub fn values(&mut self) -> Result<&mut [f32]> {
        match self {
            Self::Host(values) => Ok(values),
            #[cfg(feature = "cuda")]
            Self::Pinned(staging) => Ok(staging.values()?),
        }
    }
}

/// The thread's side: memory for so many floats.
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
    pub fn next(&mut self) -> Result<Option<Floats>> {
        match self {
            Self::Host(len) => Ok(Some(Floats::Host(vec![0.0; *len]))),
            #[cfg(feature = "cuda")]
            Self::Pinned { device, len, left, back } => {
                if let Ok(block) = back.try_recv() {
                    return Ok(Some(Floats::Pinned(block)));
                }
                if *left == 0 {
                    return Ok(back.recv().ok().map(Floats::Pinned));
                }
                *left -= 1;
                Ok(Some(Floats::Pinned(Staging::new(device, *len)?)))
            }
        }
    }
}

/// The trainer's side.
pub(super) enum Sending {
    Host,
    #[cfg(feature = "cuda")]
    Ahead {
        uploader: Uploader,
        back: Sender<Staging>,
    },
}

/// Floats on their way to the device.
pub(super) enum Sent {
    Host(Tensor),
    #[cfg(feature = "cuda")]
    Device(Upload),
}

/// Both sides, for batches of `len` floats, `blocks` of them in pinned memory.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
pub(super) fn way(device: &Device, len: usize, blocks: usize) -> Result<(Sending, Blocks)> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            let (give_back, back) = channel();
            let sending = Sending::Ahead { uploader: Uploader::new(device)?, back: give_back };
            Ok((sending, Blocks::Pinned { device: device.clone(), len, left: blocks, back }))
        }
        _ => Ok((Sending::Host, Blocks::Host(len))),
    }
}

impl Sending {
    /// Whether floats are sent before they are asked for.
    pub fn is_ahead(&self) -> bool {
        !matches!(self, Self::Host)
    }

    /// Starts to send. Waits for nothing.
    pub fn send(&self, floats: Floats) -> Result<Sent> {
        match (self, floats) {
            (_, Floats::Host(values)) => {
                let len = values.len();
                Ok(Sent::Host(Tensor::from_vec(values, len, &Device::Cpu)?))
            }
            #[cfg(feature = "cuda")]
            (Self::Ahead { uploader, back }, Floats::Pinned(mut block)) => {
                let upload = uploader.start(&mut block)?;
                // The thread may have ended by an error, which comes after this batch; nobody needs the block then.
                let _ = back.send(block);
                Ok(Sent::Device(upload))
            }
            #[cfg(feature = "cuda")]
            (Self::Host, Floats::Pinned(_)) => Err(candle_models::Error::Input("a pinned block without a device".to_owned())),
        }
    }
}

impl Sent {
    /// The floats as a vector, on the device if they were sent there. The host does not wait.
    pub fn arrive(self) -> Result<Tensor> {
        match self {
            Self::Host(tensor) => Ok(tensor),
            #[cfg(feature = "cuda")]
            Self::Device(upload) => Ok(upload.finish()?),
        }
    }
}
