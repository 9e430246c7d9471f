//! What a data set is made of, as plain data.

use crate::overlay;
use crate::shards::{MadeOn, Shards};
use candle_core::{Device, Tensor};
use candle_models::random::Random;
use candle_models::rf::Complex32;
use candle_models::rf::features::{Extractor, Form, SUMMARY, summarise};
use candle_models::rf::geometry::LIGHT;
use candle_models::rf::localiser::events::{Event, Events};
use candle_models::rf::synthesis::{Compatible, Physical, Reception};
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How signals are made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Signals {
    /// As published.
    Compatible(Compatible),
    /// With what real emitters, paths and receivers do to them.
    Physical(Box<Physical>),
}

/// A data set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Address of everything random.
    pub seed: u64,
    /// Events of the whole.
    pub events: u64,
    /// Events of a file, 1 to 65536.
    pub shard: u64,
    /// Seconds of a chunk whose features are extracted.
    pub chunk: f64,
    /// Which definitions of the features count.
    pub form: Form,
    /// What signals are made and their features extracted on: the command's `--device` says it.
    pub device: MadeOn,
    /// Whether the samples themselves are written: 11 MB for an event of seven receivers and a second.
    pub iq: bool,
    /// How signals are made.
    pub signals: Signals,
}

/// What is written of an event: a row of each tensor.
pub struct Row {
    /// `[receivers, 18, 4]`.
    pub features: Vec<f32>,
    /// Power, signal-to-noise ratio and frequency offset as they were drawn, `[receivers, 3]`.
    pub receptions: Vec<f32>,
    /// Latitude and longitude of the emitter, degrees.
    pub emitter: [f64; 2],
    /// `[receivers, samples, 2]`, if they are wanted.
    pub iq: Vec<f32>,
}

impl Scenario {
    /// The presets by name.
    pub const PRESETS: [&'static str; 2] = ["compatible", "physical"];

    /// `compatible`: the published generator and extractor. `physical`: signals with delays by distance, and the repaired features.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn preset(name: &str) -> Result<Self> {
        let base = Self {
            seed: 1,
            events: 10_000,
            shard: 64,
            chunk: 0.2,
            form: Form::Compatible,
            device: MadeOn::Cpu,
            iq: false,
            signals: Signals::Compatible(Compatible::default()),
        };
        match name {
            "compatible" => Ok(base),
            "physical" => Ok(Self { form: Form::Repaired, signals: Signals::Physical(Box::default()), ..base }),
            _ => Err(Error::config("preset", format!("expected one of {}, found '{name}'", Self::PRESETS.join(", ")))),
        }
    }

    /// The preset, with the keys of `file` (TOML) and then those of `sets` (`a.b=c`) in place of its own.
    ///
    /// # Errors
    /// If a key is unknown, or a value has the wrong type or is out of range; the key is named.
    pub fn resolve(preset: &str, file: Option<&str>, sets: &[String]) -> Result<Self> {
        let scenario = overlay::resolve(&Self::preset(preset)?, file, sets, &overlay::kind_alone)?;
        scenario.validate()?;
        Ok(scenario)
    }

    /// Names the field that is out of range.
    ///
    /// # Errors
    /// If there is one.
    pub fn validate(&self) -> Result<()> {
        for (field, found, most) in [("events", self.events, 1 << 40), ("shard", self.shard, 1 << 16)] {
            if found == 0 || found > most {
                return Err(Error::config(field, format!("expected 1 to {most}, found {found}")));
            }
        }
        match &self.signals {
            Signals::Compatible(signals) => signals.validate(),
            Signals::Physical(signals) => signals.validate(),
        }
        .map_err(|error| match error {
            Error::Config { field, reason } => Error::config(format!("signals.{field}"), reason),
            other => other,
        })?;
        let samples = self.chunk_samples();
        if !(self.chunk > 0.0 && (2..=self.samples()).contains(&samples)) {
            let most = self.samples() as f64 / self.sample_rate();
            return Err(Error::config(
                "chunk",
                format!("expected at least 2 samples and at most the {most} s of a signal, found {} s", self.chunk),
            ));
        }
        Ok(())
    }

    /// Samples a second.
    pub fn sample_rate(&self) -> f64 {
        match &self.signals {
            Signals::Compatible(signals) => signals.sample_rate,
            Signals::Physical(signals) => signals.sample_rate,
        }
    }

    /// Samples of a signal.
    pub fn samples(&self) -> usize {
        match &self.signals {
            Signals::Compatible(signals) => signals.samples,
            Signals::Physical(signals) => signals.samples,
        }
    }

    fn chunk_samples(&self) -> usize {
        (self.chunk * self.sample_rate()).round() as usize
    }

    /// How its events lie in files.
    pub fn shards(&self) -> Shards {
        Shards { unit: "events", rows: self.events, each: self.shard }
    }

    /// What extracts the features of its chunks.
    ///
    /// # Errors
    /// If a chunk is too short or too long.
    pub fn extractor(&self) -> Result<Extractor> {
        Extractor::new(self.sample_rate(), self.chunk_samples(), self.form)
    }

    /// An event and how each receiver hears it.
    fn draw(&self, events: &Events, event: u64) -> (Event, Vec<Reception>) {
        let drawn = events.draw(Random::new(self.seed).stream("events").at(event));
        let heard = drawn.receptions.iter().map(|one| Reception {
            frequency_offset_hz: one.frequency_offset_hz,
            power_dbm: one.power_dbm,
            snr_db: one.snr_db,
        });
        let heard = heard.collect();
        (drawn, heard)
    }

    /// The address of signals, of which every event has its own.
    fn signals(&self) -> Random {
        Random::new(self.seed).stream("signals")
    }

    /// An event: drawn, its signals made on the CPU, their features extracted.
    ///
    /// # Errors
    /// If a value is out of range.
    pub fn row(&self, events: &Events, extractor: &mut Extractor, event: u64) -> Result<Row> {
        let (drawn, heard) = self.draw(events, event);
        let mut iq = vec![Complex32::default(); heard.len() * self.samples()];
        match &self.signals {
            Signals::Compatible(signals) => drop(signals.generate_each(self.signals().at(event), &heard, &mut iq)?),
            Signals::Physical(signals) => drop(signals.generate(self.signals().at(event), &heard, &delays(&drawn), &mut iq)?),
        }
        let mut features = Vec::with_capacity(heard.len() * SUMMARY);
        for signal in iq.chunks_exact(self.samples()) {
            let chunks: Vec<_> = signal.chunks_exact(extractor.samples()).map(|chunk| extractor.extract(chunk)).collect::<Result<_>>()?;
            features.extend(summarise(&chunks).map(|x| x as f32));
        }
        let iq = if self.iq { iq.iter().flat_map(|x| [x.re, x.im]).collect() } else { Vec::new() };
        Ok(row_of(&drawn, &heard, features, iq))
    }

    /// Events one behind the other whose signals are made on a device and their features extracted there, a few events at a time; `done` is called after
    /// each event. The samples leave the device only where they are wanted.
    ///
    /// # Errors
    /// If a value is out of range, or the device has no memory.
    pub fn rows(&self, events: &Events, extractor: &Extractor, numbers: Range<u64>, device: &Device, done: impl Fn()) -> Result<Vec<Row>> {
        /// Events whose signals are in the device's memory at once.
        const AT_ONCE: usize = 16;
        let mut rows = Vec::with_capacity(numbers.clone().count());
        for first in numbers.clone().step_by(AT_ONCE) {
            let last = numbers.end.min(first + AT_ONCE as u64);
            let drawn: Vec<_> = (first..last).map(|event| self.draw(events, event)).collect();
            let receptions: Vec<Vec<Reception>> = drawn.iter().map(|(_, heard)| heard.clone()).collect();
            let iq = match &self.signals {
                Signals::Compatible(signals) => signals.generate_on(self.signals(), first, &receptions, device)?.0,
                Signals::Physical(signals) => {
                    let delays: Vec<Vec<f64>> = drawn.iter().map(|(event, _)| delays(event)).collect();
                    signals.generate_on(self.signals(), first, &receptions, &delays, device)?.0
                }
            };
            let named = |error| match error {
                Error::Input(what) => Error::Input(format!("events {first} to {}: {what}", last - 1)),
                other => other,
            };
            let features = summaries(&iq, extractor).map_err(named)?;
            let iq = if self.iq { iq.flatten_from(1)?.to_vec2()? } else { vec![Vec::new(); drawn.len()] };
            for (((event, heard), features), iq) in drawn.iter().zip(features).zip(iq) {
                rows.push(row_of(event, heard, features, iq));
                done();
            }
        }
        Ok(rows)
    }
}

/// How long what an event's emitter sends takes to each receiver, s.
fn delays(Event { emitter, receptions }: &Event) -> Vec<f64> {
    receptions.iter().map(|one| 1000.0 * one.receiver.distance_km(emitter) / LIGHT).collect()
}

/// What is written of the features of signals `[events, receivers, samples, 2]`, event by event.
fn summaries(iq: &Tensor, extractor: &Extractor) -> Result<Vec<Vec<f32>>> {
    let (events, receivers, samples, parts) = iq.dims4()?;
    let (chunk, each) = (extractor.samples(), samples / extractor.samples());
    // What is left at the end of a signal and makes no whole chunk is left out.
    let chunks = iq.narrow(2, 0, each * chunk)?.reshape((events * receivers * each, chunk, parts))?;
    let found = extractor.extract_all(&chunks)?;
    let of_event = |chunks: &[_]| chunks.chunks(each).flat_map(|signal| summarise(signal).map(|x| x as f32)).collect();
    Ok(found.chunks(receivers * each).map(of_event).collect())
}

fn row_of(event: &Event, heard: &[Reception], features: Vec<f32>, iq: Vec<f32>) -> Row {
    let numbers = heard.iter().flat_map(|one| [one.power_dbm, one.snr_db, one.frequency_offset_hz].map(|x| x as f32));
    Row { features, receptions: numbers.collect(), emitter: [event.emitter.latitude, event.emitter.longitude], iq }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of several events at once are those of each alone.
    #[test]
    fn events_at_once_are_those_alone() {
        // Five chunks of 796 samples, and 20 that make none.
        let sets = ["signals.samples=4000", "chunk=0.00398", "iq=true", "form=\"repaired\""].map(str::to_owned);
        for preset in Scenario::PRESETS {
            let scenario = Scenario::resolve(preset, None, &sets).unwrap();
            let (events, mut extractor) = (Events::default(), scenario.extractor().unwrap());
            let rows = scenario.rows(&events, &extractor, 3..22, &Device::Cpu, || ()).unwrap();
            for (event, found) in (3..22).zip(&rows) {
                let alone = scenario.row(&events, &mut extractor, event).unwrap();
                let same = found.features == alone.features && found.iq == alone.iq && found.emitter == alone.emitter;
                assert!(same, "{preset}, event {event}");
            }
            let without = Scenario { iq: false, ..scenario }.rows(&events, &extractor, 3..5, &Device::Cpu, || ()).unwrap();
            assert!(without.len() == 2 && without.iter().zip(&rows).all(|(row, with)| row.iq.is_empty() && row.features == with.features));
        }
    }

    #[test]
    fn presets_are_valid_and_what_is_wrong_is_named() {
        for preset in Scenario::PRESETS {
            let scenario = Scenario::resolve(preset, None, &[]).unwrap();
            assert_eq!(Scenario::resolve(preset, Some(&overlay::to_toml(&scenario).unwrap()), &[]).unwrap(), scenario);
        }
        for (set, message) in [
            ("events=0", "config: events: expected 1 to "),
            ("shard=0", "config: shard: expected 1 to "),
            ("chunk=2.0", "config: chunk: expected at least 2 samples and at most the 1 s"),
            ("chunk=nan", "config: chunk: "),
            ("signals.samples=0", "config: signals.samples: "),
            ("signals.sample_rate=0.0", "config: signals.sample_rate: "),
            ("speed=1", "config: speed: no such key"),
        ] {
            let error = Scenario::resolve("compatible", None, &[set.to_owned()]).unwrap_err().to_string();
            assert!(error.starts_with(message), "{set}: {error}");
        }
    }
}
