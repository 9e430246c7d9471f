//! Recordings of signals as SigMF describes them: samples as bytes in a dataset, and what they are in a file of JSON beside it
//! (Signal Metadata Format Specification 1.2).
//!
//! Every datatype of the standard is read, by many channels and segments, with bytes that are no samples between them, and from archives.
//! Samples are read where they lie, through a map of the file, so a recording may be larger than the memory.
//!
//! ```
//! use candle_models::rf::Complex32;
//! use candle_models::rf::sigmf::{Capture, Datatype, Meta, Recording, Writer};
//!
//! # fn main() -> candle_models::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("sigmf-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! let mut meta = Meta::new(Datatype::CI16, 48_000.0);
//! meta.captures.push(Capture { frequency: Some(145e6), ..Capture::default() });
//! let mut writer = Writer::create(folder.join("tone"), meta)?;
//! writer.write(&[Complex32::new(0.5, -0.25); 1000])?;
//! writer.finish()?;
//!
//! let recording = Recording::open(folder.join("tone.sigmf-meta"))?;
//! let mut samples = [Complex32::default(); 10];
//! assert_eq!((recording.len(), recording.read(995, &mut samples)), (1000, 5));
//! assert_eq!(samples[0], Complex32::new(0.5, -0.25));
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok(())
//! # }
//! ```

mod archive;
mod datatype;
mod meta;
mod recording;
#[cfg(test)]
mod tests;
mod write;

pub use datatype::{Datatype, Kind};
pub use meta::{Annotation, Capture, Extension, Geolocation, Global, Meta, VERSION};
pub use recording::{Checked, Recording};
pub use write::{Writer, Written};
