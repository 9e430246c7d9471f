//! Snapshots of sequences: states that outlive the server, and that other servers can go on from, in a folder or in Redis.
//!
//! A snapshot is a safetensors file, wherever it is kept: the state as the engine saves it, and beside it in the metadata the frames behind it, the sequence it
//! is of, a digest of the signature of the model that made it, and a checksum over all of that.

mod folder;
mod redis;

use crate::fault::{Fault, Kind};
use crate::log::Log;
use crate::options::{Options, SnapshotStore};
use crate::sequences::Name;
use candle_models::candle_core::Device;
use candle_models::candle_core::safetensors::load_buffer;
use candle_models::signature::{Signature, TensorSpec};
use candle_models::tensors::NamedTensors;
use candle_models::{Error, candle_core, hex};
use safetensors::{SafeTensors, View};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What this version writes and reads.
const FORMAT: &str = "candle-sequence 1";

/// Where snapshots are kept, by the name of a model and a key of 64 hexadecimal digits. Several servers may share one store: the snapshot
/// that was put there last is the one that is there. Its methods may block.
pub(crate) trait Store: Send + Sync {
    /// Puts a snapshot there, complete or not at all.
    fn put(&self, model: &str, key: &str, bytes: &[u8]) -> candle_models::Result<()>;
    /// The snapshot, if there is one.
    fn get(&self, model: &str, key: &str) -> candle_models::Result<Option<Vec<u8>>>;
    /// Takes it away, if it is there.
    fn remove(&self, model: &str, key: &str) -> candle_models::Result<()>;
    /// Takes away those that were not written for too long, if it was told what that is.
    fn sweep(&self) -> candle_models::Result<()>;
}

/// The store that those options ask for, if they do.
pub(crate) fn open(options: &Options) -> candle_models::Result<Option<Arc<dyn Store>>> {
    let (keep, idle) = (options.snapshot_keep, options.limits.sequence_time);
    if let Some(keep) = keep.filter(|keep| *keep <= idle) {
        // A sequence that is open has to find its snapshot when it is ended.
        return Err(Error::Input(format!("snapshot_keep: expected longer than a sequence may be idle ({idle:?}), found {keep:?}")));
    }
    Ok(match &options.snapshots {
        Some(SnapshotStore::Folder(path)) => Some(Arc::new(folder::Folder::open(path, keep)?)),
        Some(SnapshotStore::Redis(url)) => Some(Arc::new(redis::Redis::open(url, keep)?)),
        None => None,
    })
}

/// What is known of a snapshot that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub frames: u64,
    checksum: String,
}

/// The state of a sequence, and the frames behind it.
pub(crate) struct Snapshot {
    pub state: NamedTensors,
    pub frames: u64,
}

/// The snapshots of one model's sequences.
pub(crate) struct Snapshots {
    store: Arc<dyn Store>,
    log: Arc<Log>,
    model: String,
    /// Digest of the model's signature.
    signature: String,
    /// How many were written.
    pub written: AtomicU64,
    /// How often the store failed.
    pub faults: AtomicU64,
}

impl Snapshots {
    /// The snapshots of a model, of which there may be some from earlier servers.
    pub fn new((store, log): (Arc<dyn Store>, Arc<Log>), model: &str, signature: &Signature) -> Self {
        let signature = digest(signature);
        Self { store, log, model: model.to_owned(), signature, written: AtomicU64::new(0), faults: AtomicU64::new(0) }
    }

    /// Writes one. That it could not be written is counted and said in the log, and hurts nothing else.
    pub fn write(&self, id: &Name, snapshot: &Snapshot) -> Option<Mark> {
        let encoded = self.encode(id, snapshot);
        let written = encoded.and_then(|(bytes, checksum)| self.store.put(&self.model, &key(id), &bytes).map(|()| checksum));
        if written.is_ok() {
            self.written.fetch_add(1, Relaxed);
        }
        self.noted(id, "was not written", written).map(|checksum| Mark { frames: snapshot.frames, checksum })
    }

    /// Reads the one of a sequence, if there is one. One that cannot be used is left where it is.
    pub fn read(&self, id: &Name) -> Result<Option<(Snapshot, Mark)>, Fault> {
        let of = |reason: &str| format!("sequence {id} of model '{}': its snapshot {reason}", self.model);
        let Some(found) = self.noted(id, "could not be read", self.store.get(&self.model, &key(id))) else {
            return Err(Fault::new(Kind::Unavailable, of("could not be read")));
        };
        let decoded = found.map(|bytes| self.decode(id, &bytes)).transpose();
        decoded.map_err(|reason| Fault::new(Kind::StateLost, of(&reason)))
    }

    /// Removes the one of a sequence that is over, or has begun anew.
    pub fn remove(&self, id: &Name) {
        self.noted(id, "was not removed", self.store.remove(&self.model, &key(id)));
    }

    /// Counts a state that could not be read from the engine.
    pub fn failed(&self, id: &Name, error: &dyn std::fmt::Display) {
        self.fault(id, "was not written", error);
    }

    fn noted<T>(&self, id: &Name, what: &str, result: candle_models::Result<T>) -> Option<T> {
        result.map_err(|error| self.fault(id, what, &error)).ok()
    }

    fn fault(&self, id: &Name, what: &str, error: &dyn std::fmt::Display) {
        // The first of many says what the matter is; after that a line for every thousand.
        if self.faults.fetch_add(1, Relaxed).is_multiple_of(1000) {
            self.log.snapshot(&self.model, &format!("the snapshot of sequence {id} {what}"), error);
        }
    }

    /// The bytes of a snapshot, and their checksum.
    fn encode(&self, id: &Name, snapshot: &Snapshot) -> candle_models::Result<(Vec<u8>, String)> {
        let frames = snapshot.frames.to_string();
        let data = snapshot.state.iter().map(|(name, tensor)| (name, tensor.data().into_owned()));
        let checksum = checksum([&self.signature, &id.text(), &frames], data);
        let metadata = [
            ("format", FORMAT.to_owned()),
            ("model", self.model.clone()),
            ("signature", self.signature.clone()),
            ("sequence", id.text()),
            ("frames", frames),
            ("checksum", checksum.clone()),
        ];
        let metadata: HashMap<String, String> = metadata.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let bytes = safetensors::serialize(snapshot.state.iter(), Some(metadata));
        bytes.map(|bytes| (bytes, checksum)).map_err(|e| Error::from(candle_core::Error::from(e)))
    }

    fn decode(&self, id: &Name, bytes: &[u8]) -> Result<(Snapshot, Mark), String> {
        let damaged = |e: &dyn std::fmt::Display| format!("is damaged: {e}");
        let tensors = SafeTensors::deserialize(bytes).map_err(|e| damaged(&e))?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| damaged(&e))?;
        let metadata = header.metadata().as_ref();
        let of = |name: &str| metadata.and_then(|metadata| metadata.get(name)).map_or("", String::as_str);
        if of("format") != FORMAT {
            return Err(format!("has another format: expected {FORMAT}, found {:?}", of("format")));
        }
        let mut data: Vec<_> = tensors.iter().map(|(name, view)| (name, view.data().to_vec())).collect();
        data.sort_unstable();
        if checksum([of("signature"), of("sequence"), of("frames")], data) != of("checksum") {
            return Err(damaged(&"its checksum is another one"));
        }
        if of("sequence") != id.text() {
            return Err("is of another sequence".to_owned());
        }
        if of("signature") != self.signature {
            return Err("is of a model with other inputs, outputs or states: begin the sequence anew".to_owned());
        }
        let frames = of("frames").parse().map_err(|e| damaged(&e))?;
        let state = load_buffer(bytes, &Device::Cpu).map_err(|e| damaged(&e))?.into_iter().collect();
        Ok((Snapshot { state, frames }, Mark { frames, checksum: of("checksum").to_owned() }))
    }
}

/// A key of hexadecimal digits for a name, which can hold anything.
fn key(id: &Name) -> String {
    hex(Sha256::digest(id.text()))
}

/// What stands in the way of going on from a state: names, datatypes and shapes of all tensors. Weights are not among it, as sequences also
/// go on in a model that was loaded anew with others.
fn digest(signature: &Signature) -> String {
    let mut text = String::new();
    let mut add = |kind: &str, specs: &[TensorSpec]| {
        for spec in specs {
            // A text takes whatever is written to it.
            let _ = writeln!(text, "{kind} {:?} {:?} {:?}", spec.name, spec.dtype(), spec.shape);
        }
    };
    add("input", &signature.inputs);
    add("output", &signature.outputs);
    add("state", &signature.state);
    hex(Sha256::digest(text))
}

/// Of the metadata and of tensors in the order of their names.
fn checksum(metadata: [&str; 3], tensors: impl IntoIterator<Item = (impl AsRef<str>, Vec<u8>)>) -> String {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    metadata.iter().for_each(|text| add(text.as_bytes()));
    for (name, data) in tensors {
        add(name.as_ref().as_bytes());
        add(&data);
    }
    hex(hash.finalize())
}
