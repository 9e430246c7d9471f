//! Aircraft from a recording at 1090 MHz: finds the messages of their transponders (Mode S, ADS-B) and prints who says what.
//!
//! `cargo run --release --example adsb -- RECORDING.sigmf-meta [--quiet]`
//!
//! At two million samples a second half of a bit is a sample: a bit is 1 where its first half is the stronger one. A message begins with four pulses and
//! ends with a checksum of 24 bits, which tells it from noise. Messages that annotations have (in their comments) are compared.

use anyhow::{Context, Result, bail};
use candle_models::rf::Complex32;
use candle_models::rf::sigmf::Recording;
use std::collections::BTreeSet;
use std::fmt;

/// Samples before the bits, two a microsecond.
const PREAMBLE: usize = 16;
const PULSES: [usize; 4] = [0, 2, 7, 9];
/// The extended squitter, and the reply to an interrogation by everybody: their formats, and their bytes.
const KINDS: [(u8, usize); 2] = [(17, 14), (11, 7)];
/// The generator of the checksum without its highest term.
const GENERATOR: u32 = 0xff_f409;
/// The last bits of a reply are the checksum and, on top of it, the number of whoever asked: 0 to 79.
const INTERROGATORS: u32 = 80;

/// A message and where it begins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// The number of its first sample.
    pub sample: u64,
    /// 14 or 7 of them.
    pub bytes: Vec<u8>,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Message {
    /// What it says of the aircraft whose address is its second to fourth byte.
    fn says(&self) -> String {
        let bytes = &self.bytes;
        let bits =
            |first: usize, count: usize| (first..first + count).fold(0, |all, i| all << 1 | u32::from(bytes[i / 8] >> (7 - i % 8) & 1));
        match (bytes[0] >> 3, bytes.get(4).map(|byte| byte >> 3)) {
            (17, Some(1..=4)) => {
                let letters = b"#ABCDEFGHIJKLMNOPQRSTUVWXYZ##### ###############0123456789######";
                let name: String = (0..8).map(|i| char::from(letters[bits(40 + 6 * i, 6) as usize])).collect();
                format!("is called {}", name.trim())
            }
            // In steps of 25 feet, where the bit says so.
            (17, Some(9..=18)) if bits(47, 1) == 1 => format!("is {} feet up", 25 * i64::from(bits(40, 7) << 4 | bits(48, 4)) - 1000),
            (17, Some(kind)) => format!("sends a message of type {kind}"),
            _ => "is here".to_owned(),
        }
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().context("expected a recording (.sigmf-meta)")?;
    let quiet = match arguments.next().as_deref() {
        None => false,
        Some("--quiet") => true,
        Some(other) => bail!("{other}: expected --quiet"),
    };
    let recording = Recording::open(&path)?;
    recording.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    let messages = decode(&recording)?;
    if !quiet {
        for message in &messages {
            let [a, b, c] = [1, 2, 3].map(|i| message.bytes[i]);
            println!("{:>8}  {message:28}  {a:02x}{b:02x}{c:02x} {}", message.sample, message.says());
        }
    }
    let found: BTreeSet<(u64, String)> = messages.iter().map(|message| (message.sample, message.to_string())).collect();
    let noted = recording.meta.annotations.iter().filter_map(|note| Some((note.sample_start, note.comment.clone()?)));
    let noted: BTreeSet<_> = noted.collect();
    let both = found.intersection(&noted).count();
    println!("{} messages, {both} of the {} that are annotated, {} others", found.len(), noted.len(), found.len() - both);
    Ok(())
}

/// The messages of a recording, read in pieces that overlap by the length of one.
pub fn decode(recording: &Recording) -> Result<Vec<Message>> {
    if recording.sample_rate()? != 2e6 {
        bail!("expected 2000000 samples a second, found {}", recording.sample_rate()?);
    }
    const PIECE: usize = 1 << 20;
    let longest = PREAMBLE + 16 * KINDS[0].1;
    let (mut messages, mut first) = (Vec::new(), 0);
    let mut samples = vec![Complex32::default(); PIECE + longest];
    while first < recording.len() {
        let count = recording.read(first, &mut samples);
        let powers: Vec<f32> = samples[..count].iter().map(|x| x.norm_sqr()).collect();
        messages.extend((0..count.min(PIECE)).filter_map(|at| Some(Message { sample: first + at as u64, bytes: message(&powers[at..])? })));
        first += PIECE as u64;
    }
    Ok(messages)
}

/// The message that begins with the first of these powers, if one does.
fn message(powers: &[f32]) -> Option<Vec<u8>> {
    let (preamble, bits) = powers.split_at_checked(PREAMBLE)?;
    let least = PULSES.iter().fold(f32::INFINITY, |least, at| least.min(preamble[*at]));
    if (0..PREAMBLE).any(|at| !PULSES.contains(&at) && !stronger(least, preamble[at])) {
        return None;
    }
    KINDS.into_iter().find_map(|(format, count)| {
        let halves = bits.get(..16 * count)?;
        let byte = |halves: &[f32]| halves.chunks_exact(2).fold(0, |byte, half| byte << 1 | u8::from(stronger(half[0], half[1])));
        let bytes: Vec<u8> = halves.chunks_exact(16).map(byte).collect();
        let asked = checksum(&bytes);
        (bytes[0] >> 3 == format && (asked == 0 || format == 11 && asked < INTERROGATORS)).then_some(bytes)
    })
}

/// Whether one power is above another by more than what rounding does to equal ones.
fn stronger(a: f32, b: f32) -> bool {
    a > b * 1.00001
}

/// The remainder of a message with its checksum.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |rest: u32| (rest << 1 ^ if rest >> 23 & 1 == 1 { GENERATOR } else { 0 }) & 0xff_ffff;
    let (said, sum) = bytes.split_at(bytes.len() - 3);
    let rest = said.iter().fold(0, |rest, byte| (0..8).fold(rest ^ u32::from(*byte) << 16, |rest, _| step(rest)));
    rest ^ sum.iter().fold(0, |all, byte| all << 8 | u32::from(*byte))
}
