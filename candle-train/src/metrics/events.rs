//! TensorBoard's event files.
//!
//! A file is a sequence of records (TensorFlow's `record_writer.h`): length `u64`, its checksum, that many bytes of a protocol-buffer
//! message, their checksum; all little-endian, checksums CRC-32C, rotated and offset. The messages are the few fields of
//! `event.proto`, `summary.proto` and `tensor.proto` that scalars and texts need.
//!
//! A record is one write, so a killed run leaves at most one torn record at the end, which TensorBoard passes over. A resumed run
//! cuts the older files behind its checkpoint, for readers that come later, and starts a new file with a session log, which makes
//! a TensorBoard that has been watching forget the same steps.

use candle_models::{Error, Result};
use prost::Message;
use serde_json::Value as Json;
use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    what: Option<What>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(message, optional, tag = "9")]
    metadata: Option<Metadata>,
    #[prost(oneof = "Datum", tags = "2, 8")]
    datum: Option<Datum>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Datum {
    #[prost(float, tag = "2")]
    Scalar(f32),
    #[prost(message, tag = "8")]
    Tensor(Tensor),
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin: Option<Plugin>,
}

#[derive(Clone, PartialEq, Message)]
struct Plugin {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    strings: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "2")]
    dims: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
struct Dim {
    #[prost(int64, tag = "1")]
    size: i64,
}

/// `SessionLog.START`: events of this step and later ones that were read before are void.
const START: i32 = 1;
/// `DT_STRING`.
const STRING: i32 = 7;
const FILE_VERSION: &str = "brain.Event:2";
const PREFIX: &str = "events.out.tfevents.";

/// The event file that a run writes to.
#[derive(Debug)]
pub(super) struct Events {
    path: PathBuf,
    file: File,
    step: u64,
}

impl Events {
    /// Starts a file in `directory` for the steps after `step`, and takes later ones out of the files that are there.
    pub(super) fn open(directory: &Path, step: u64) -> Result<Self> {
        let older = older(directory)?;
        older.iter().try_for_each(|(_, path)| cut_after(path, step as i64).map_err(Error::io(path)))?;
        // TensorBoard reads the files of a run in the order of their names: this one comes last, whatever the clock says.
        let stamp = older.iter().map(|(stamp, _)| stamp + 1).max().unwrap_or(0).max(now() as u64);
        let path = directory.join(format!("{PREFIX}{stamp:010}.candle-train"));
        let file = OpenOptions::new().create_new(true).append(true).open(&path).map_err(Error::io(&path))?;
        let mut events = Self { path, file, step };
        events.write(0, What::FileVersion(FILE_VERSION.into()))?;
        events.write(step + 1, What::SessionLog(SessionLog { status: START }))?;
        Ok(events)
    }

    /// All numbers in `object` but the step, under their keys joined by `/`.
    pub(super) fn scalars(&mut self, step: u64, object: &Json) -> Result<()> {
        let mut value = Vec::new();
        collect("", object, &mut value);
        value.retain(|value| value.tag != "step");
        self.write(step, What::Summary(Summary { value }))
    }

    /// A text, as Markdown.
    pub(super) fn text(&mut self, tag: &str, markdown: &str) -> Result<()> {
        let shape = Some(Shape { dims: vec![Dim { size: 1 }] });
        let tensor = Tensor { dtype: STRING, shape, strings: vec![markdown.as_bytes().to_vec()] };
        let metadata = Some(Metadata { plugin: Some(Plugin { name: "text".into() }) });
        let value = Value { tag: tag.into(), metadata, datum: Some(Datum::Tensor(tensor)) };
        self.write(self.step, What::Summary(Summary { value: vec![value] }))
    }

    fn write(&mut self, step: u64, what: What) -> Result<()> {
        let event = Event { wall_time: now(), step: step as i64, what: Some(what) };
        self.file.write_all(&record(&event.encode_to_vec())).map_err(Error::io(&self.path))
    }
}

fn collect(path: &str, value: &Json, into: &mut Vec<Value>) {
    match value {
        Json::Object(object) => {
            for (key, value) in object {
                let path = if path.is_empty() { key.clone() } else { format!("{path}/{key}") };
                collect(&path, value, into);
            }
        }
        Json::Number(number) => {
            let scalar = number.as_f64().map(|x| Datum::Scalar(x as f32));
            into.push(Value { tag: path.to_owned(), metadata: None, datum: scalar });
        }
        _ => {}
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The event files of a directory by their time stamps.
fn older(directory: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = fs::read_dir(directory).map_err(Error::io(directory))?;
    let stamped = |path: PathBuf| {
        let stamp = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()?;
        Some((stamp, path))
    };
    entries.map(|e| Ok(stamped(e.map_err(Error::io(directory))?.path()))).filter_map(Result::transpose).collect()
}

/// Cuts a file before the first record of a step beyond `step`, or that is torn.
fn cut_after(path: &Path, step: i64) -> std::io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let (mut reader, mut keep) = (BufReader::new(&file), 0);
    while let Some(message) = next_record(&mut reader)? {
        if Event::decode(&*message).is_ok_and(|event| event.step > step) {
            break;
        }
        keep += message.len() as u64 + OVERHEAD;
    }
    file.set_len(keep)
}

/// Bytes of a record beside its message.
const OVERHEAD: u64 = 16;

fn record(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let [head, tail] = [&length, message].map(|bytes| checksum(bytes).to_le_bytes());
    [&length, head.as_slice(), message, tail.as_slice()].concat()
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The message of the next record; `None` at the end and where what follows is no whole record.
fn next_record(reader: &mut impl Read) -> std::io::Result<Option<Vec<u8>>> {
    let Some(head) = read_exactly(reader, 12)? else { return Ok(None) };
    let (length, sum) = head.split_at(8);
    if checksum(length).to_le_bytes() != sum {
        return Ok(None);
    }
    let length = length.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    let (Some(message), Some(sum)) = (read_exactly(reader, length)?, read_exactly(reader, 4)?) else { return Ok(None) };
    Ok((checksum(&message).to_le_bytes() == *sum).then_some(message))
}

fn read_exactly(reader: &mut impl Read, bytes: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut found = Vec::new();
    reader.take(bytes).read_to_end(&mut found)?;
    Ok((found.len() as u64 == bytes).then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The files' bytes in the order of their names.
    fn files(directory: &Path) -> Vec<Vec<u8>> {
        let mut files = older(directory).unwrap();
        files.sort();
        files.into_iter().map(|(_, path)| fs::read(path).unwrap()).collect()
    }

    /// All whole records, and how many bytes are left behind them.
    fn read(bytes: &[u8]) -> (Vec<Event>, usize) {
        let (mut rest, mut events, mut left) = (bytes, Vec::new(), bytes.len());
        while let Some(message) = next_record(&mut rest).unwrap() {
            events.push(Event::decode(&*message).unwrap());
            left = rest.len();
        }
        (events, left)
    }

    fn steps(bytes: &[u8]) -> Vec<i64> {
        read(bytes).0.iter().filter(|e| matches!(e.what, Some(What::Summary(_)))).map(|e| e.step).collect()
    }

    fn write(directory: &Path, from: u64, to: u64) {
        let mut events = Events::open(directory, from).unwrap();
        events.text("configuration", "seed = 1").unwrap();
        for step in from + 1..=to {
            events.scalars(step, &json!({"step": step, "loss": 1.5, "parts": {"x": 0.25}, "norm": null})).unwrap();
        }
    }

    #[test]
    fn a_record_has_the_checksums_of_the_format() {
        // What TensorBoard 2.21's own RecordWriter makes of the same event.
        let event = Event { wall_time: 1.5, step: 0, what: Some(What::FileVersion(FILE_VERSION.into())) };
        let hex: String = record(&event.encode_to_vec()).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, 2);
        let (events, left) = read(&files(dir.path())[0]);
        assert_eq!((events.len(), left), (5, 0));
        assert_eq!(events[0].what, Some(What::FileVersion(FILE_VERSION.into())));
        assert_eq!((events[1].step, &events[1].what), (1, &Some(What::SessionLog(SessionLog { status: START }))));
        let Some(What::Summary(text)) = &events[2].what else { panic!("no text") };
        assert!(matches!(&text.value[0].datum, Some(Datum::Tensor(t)) if t.strings == [b"seed = 1"]), "{text:?}");
        let Some(What::Summary(scalars)) = &events[4].what else { panic!("no scalars") };
        let found: Vec<_> = scalars.value.iter().map(|v| (v.tag.as_str(), v.datum.clone())).collect();
        assert_eq!(found, [("loss", Some(Datum::Scalar(1.5))), ("parts/x", Some(Datum::Scalar(0.25)))]);
        assert!(events[4].wall_time > 1.7e9);
    }

    #[test]
    fn a_resumed_run_takes_back_later_steps_and_torn_records() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, 9);
        let path = older(dir.path()).unwrap().remove(0).1;
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 3]).unwrap(); // Killed inside a write.
        write(dir.path(), 8, 12);
        write(dir.path(), 6, 10);
        let files = files(dir.path());
        let found: Vec<_> = files.iter().map(|bytes| steps(bytes)).collect();
        assert_eq!(found, [vec![0, 1, 2, 3, 4, 5, 6], vec![], vec![6, 7, 8, 9, 10]]);
        assert!(files.iter().all(|bytes| read(bytes).1 == 0), "a torn record is left");
        assert_eq!(read(&files[2]).0[1].step, 7, "the session starts after the checkpoint");
    }

    #[test]
    fn no_damage_is_read_as_a_record() {
        let message = Event { wall_time: 1.0, step: 3, what: None }.encode_to_vec();
        let whole = record(&message);
        assert_eq!(next_record(&mut whole.as_slice()).unwrap(), Some(message));
        for cut in 0..whole.len() {
            assert_eq!(next_record(&mut &whole[..cut]).unwrap(), None, "cut at {cut}");
        }
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(next_record(&mut damaged.as_slice()).unwrap(), None, "bit {bit}");
        }
    }
}
