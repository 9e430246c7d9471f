//! Traces: when each stage of a request began and what its tensors held, as lines of JSON in a file. Which requests are traced can be changed at run time, for all
//! models and for one.

mod settings;

use crate::fault::{Fault, one_line};
use crate::inference::Inference;
use crate::model::VERSION;
use crate::protocol::answer::{Rows, Tensor};
use crate::statistics::Times;
use serde::Serialize;
use settings::{Level, Own, START, Sampler, Values};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub(crate) use settings::{TraceChange, TraceSettings};

const QUEUE_START: &str = "QUEUE_START";
const COMPUTE_START: &str = "COMPUTE_START";
const COMPUTE_OUTPUT_START: &str = "COMPUTE_OUTPUT_START";

#[derive(Debug)]
struct State {
    all: Values,
    sampler: Sampler,
    models: BTreeMap<String, (Own, Sampler)>,
    next: u64,
}

/// Where lines go.
#[derive(Debug, Default)]
struct Output {
    /// The file behind the first, where several are wanted, and how many traces it has.
    index: u64,
    traces: u64,
}

/// The traces of a server.
#[derive(Debug)]
pub(crate) struct Traces {
    file: Option<PathBuf>,
    /// Whether any request may be traced: asked for each of them.
    active: AtomicBool,
    state: Mutex<State>,
    output: Mutex<Output>,
    /// A moment on both clocks, in nanoseconds since 1970.
    moment: (Instant, u64),
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

impl Traces {
    /// None yet, and written to that file.
    ///
    /// # Errors
    /// If the file cannot be written to.
    pub fn new(file: Option<PathBuf>) -> io::Result<Self> {
        if let Some(file) = &file {
            append(file).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", file.display())))?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let state = State { all: START, sampler: Sampler { seen: 0, left: None }, models: BTreeMap::new(), next: 1 };
        let moment = (Instant::now(), now.as_nanos() as u64);
        Ok(Self { file, active: AtomicBool::new(false), state: Mutex::new(state), output: Mutex::default(), moment })
    }

    /// Whether there is a file for them.
    pub fn is_allowed(&self) -> bool {
        self.file.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings for all models that have none of their own, or for one.
    pub fn settings(&self, model: Option<&str>) -> TraceSettings {
        let state = self.state();
        let own = model.and_then(|model| state.models.get(model));
        let (values, sampler) = own.map_or((state.all, state.sampler), |(own, sampler)| (own.over(&state.all), *sampler));
        TraceSettings::new(self.file.as_deref(), &values, sampler.left)
    }

    /// Changes the settings of all models, or of one that there is: all that is given, or nothing.
    pub fn change(&self, model: Option<&str>, change: &TraceChange) -> Result<(), Fault> {
        let new = Own::read(change, self.file.as_deref())?;
        let given = |name: &str| change.contains_key(name);
        let mut state = self.state();
        let State { all, sampler, models, .. } = &mut *state;
        if let Some(model) = model {
            let (own, sampler) = models.entry(model.to_owned()).or_insert((Own::default(), Sampler { seen: 0, left: sampler.left }));
            *own = Own {
                level: if given("trace_level") { new.level } else { own.level },
                rate: if given("trace_rate") { new.rate } else { own.rate },
                count: if given("trace_count") { new.count } else { own.count },
                frequency: if given("log_frequency") { new.frequency } else { own.frequency },
            };
            sampler.restart(&own.over(all), &given);
            if own.is_empty() {
                models.remove(model);
            }
        } else {
            let reset = |name, kept: Values| if given(name) { START } else { kept };
            *all = Values {
                level: new.level.unwrap_or(reset("trace_level", *all).level),
                rate: new.rate.unwrap_or(reset("trace_rate", *all).rate),
                count: new.count.unwrap_or(reset("trace_count", *all).count),
                frequency: new.frequency.unwrap_or(reset("log_frequency", *all).frequency),
            };
            sampler.restart(all, &given);
            // Those that count as all models do begin to count with them.
            models.values_mut().filter(|(own, _)| own.count.is_none()).for_each(|(own, sampler)| sampler.restart(&own.over(all), &given));
        }
        let active = all.level.is_on() || models.values().any(|(own, _)| own.level.is_some_and(Level::is_on));
        self.active.store(active, Relaxed);
        Ok(())
    }

    /// A trace of a request that begins, if it is one of those that are traced, or if it is `wanted` for something else than the file.
    pub fn begin(&self, model: &str, wanted: bool) -> Option<Trace> {
        let line = self.pick(model);
        (line.is_some() || wanted).then(|| Trace {
            line,
            request: String::new(),
            stages: Vec::with_capacity(12),
            tensors: Vec::new(),
            row: Row::default(),
        })
    }

    fn pick(&self, model: &str) -> Option<Place> {
        if !self.active.load(Relaxed) {
            return None;
        }
        let mut state = self.state();
        let State { all, sampler, models, next } = &mut *state;
        let (values, sampler) = match models.get_mut(model) {
            Some((own, sampler)) => (own.over(all), sampler),
            None => (*all, sampler),
        };
        if !sampler.picks(&values) {
            return None;
        }
        let id = *next;
        *next += 1;
        let Values { level, frequency, .. } = values;
        Some(Place { id, level, frequency })
    }

    /// Writes a trace, if it is one of those for the file.
    ///
    /// # Errors
    /// If that fails.
    pub fn finish(&self, model: &str, trace: &Trace) -> io::Result<()> {
        let Some((file, place)) = self.file.as_ref().zip(trace.line) else { return Ok(()) };
        let (now, unix) = self.moment;
        let ns = |at: Instant| unix + at.saturating_duration_since(now).as_nanos() as u64;
        let timestamps = || trace.stages.iter().map(|(name, at)| Timestamp { name, ns: ns(*at) }).collect();
        let timestamps = place.level.timestamps.then(timestamps);
        let version = VERSION.parse().unwrap_or(1);
        let line = Line { id: place.id, model_name: model, model_version: version, request_id: &trace.request, timestamps };
        let mut lines = serde_json::to_vec(&line)?;
        lines.push(b'\n');
        for (activity, tensor) in &trace.tensors {
            serde_json::to_writer(&mut lines, &TensorLine { id: place.id, activity, tensor })?;
            lines.push(b'\n');
        }
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if place.frequency == 0 {
            return append(file)?.write_all(&lines);
        }
        let numbered = |index: u64| PathBuf::from(format!("{}.{index}", file.display()));
        // Nothing is added to what an earlier server has left.
        while output.traces == 0 && numbered(output.index).exists() {
            output.index += 1;
        }
        append(&numbered(output.index))?.write_all(&lines)?;
        output.traces += 1;
        if output.traces >= place.frequency {
            (output.index, output.traces) = (output.index + 1, 0);
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct Line<'a> {
    id: u64,
    model_name: &'a str,
    model_version: u64,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamps: Option<Vec<Timestamp<'a>>>,
}

#[derive(Serialize)]
struct Timestamp<'a> {
    name: &'a str,
    ns: u64,
}

/// The values of a tensor, in the form that readers of Triton's traces know.
#[derive(Serialize)]
struct TensorLine<'a> {
    id: u64,
    activity: &'a str,
    tensor: &'a Traced,
}

/// Values, their shape with the batch first, and what they are.
#[derive(Debug, Serialize)]
struct Traced {
    name: String,
    data: String,
    shape: String,
    dtype: &'static str,
}

impl Traced {
    fn new(name: &str, shape: &[usize], rows: &Rows<'_>) -> Self {
        let data = match rows {
            Rows::Floats(rows) => listed(rows.iter().copied().flatten()),
            Rows::Indices(rows) => listed(rows.iter().copied().flatten()),
            Rows::Texts(rows) => listed(rows.iter().flatten()),
        };
        let shape = listed(std::iter::once(&rows.count()).chain(shape));
        Self { name: name.to_owned(), data, shape, dtype: rows.datatype().name() }
    }
}

fn listed<T: ToString>(values: impl Iterator<Item = T>) -> String {
    values.map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}

/// A request that is traced.
#[derive(Debug)]
pub(crate) struct Trace {
    /// `None` if it is not for the file.
    line: Option<Place>,
    request: String,
    stages: Vec<(&'static str, Instant)>,
    tensors: Vec<(&'static str, Traced)>,
    row: Row,
}

/// Where a trace stands among the others, and what of it.
#[derive(Debug, Clone, Copy)]
struct Place {
    id: u64,
    level: Level,
    frequency: u64,
}

/// What was asked of a model, and how it was run.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    rows: usize,
    sequence: bool,
    batch: usize,
}

/// A request whose step was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub rows: usize,
    /// Whether they are steps of sequences.
    pub sequence: bool,
    /// How many rows the batch had.
    pub batch: usize,
    /// When its rows began to wait, their batch to run, and their outputs to be written.
    pub queue: Instant,
    pub compute: Instant,
    pub output: Instant,
}

impl Trace {
    /// Its step, if it came so far.
    pub fn stepped(&self) -> Option<Step> {
        let at = |name| self.stages.iter().find(|(stage, _)| *stage == name).map(|(_, at)| *at);
        let Row { rows, sequence, batch } = self.row;
        let (queue, compute, output) = (at(QUEUE_START)?, at(COMPUTE_START)?, at(COMPUTE_OUTPUT_START)?);
        Some(Step { rows, sequence, batch, queue, compute, output })
    }

    fn stage_at(&mut self, name: &'static str, at: Instant) {
        // What was measured by the engine is rounded: a stage is none before the last.
        let last = self.stages.last().map_or(at, |(_, last)| *last);
        self.stages.push((name, at.max(last)));
    }

    /// Whether it has the values of tensors.
    pub fn has_tensors(&self) -> bool {
        self.line.is_some_and(|line| line.level.tensors)
    }

    /// An input as the model gets it, of rows of that shape.
    pub fn input(&mut self, name: &str, shape: &[usize], rows: &Rows<'_>) {
        self.tensors.push(("TENSOR_QUEUE_INPUT", Traced::new(name, shape, rows)));
    }

    /// The outputs that are answered.
    pub fn outputs(&mut self, tensors: &[Tensor<'_>]) {
        let traced = |tensor: &Tensor<'_>| ("TENSOR_BACKEND_OUTPUT", Traced::new(tensor.name, &tensor.shape, &tensor.rows));
        self.tensors.extend(tensors.iter().map(traced));
    }
}

/// The stages of a request that may be traced.
pub(crate) trait Stages {
    /// One that begins or ends now.
    fn stage(&mut self, name: &'static str);

    /// Those of the engine and of the outputs, of an answer that has just been written.
    fn step(&mut self, times: &Times, inference: &Inference);
}

impl Stages for Option<Trace> {
    fn stage(&mut self, name: &'static str) {
        if let Some(trace) = self {
            trace.stage_at(name, Instant::now());
        }
    }

    fn step(&mut self, times: &Times, inference: &Inference) {
        let Some(trace) = self else { return };
        trace.row = Row { rows: inference.rows, sequence: !inference.sequences.is_empty(), batch: times.step.batch };
        trace.request = inference.id.as_deref().map(one_line).unwrap_or_default();
        trace.step(times);
    }
}

impl Trace {
    fn step(&mut self, &Times { output, step, .. }: &Times) {
        let before = |at: Instant, time| at.checked_sub(time).unwrap_or(at);
        let now = Instant::now();
        let end = before(before(now, output), step.reply);
        let start = before(end, step.execute);
        self.stage_at(QUEUE_START, before(start, step.queue));
        self.stage_at(COMPUTE_START, start);
        self.stage_at(COMPUTE_OUTPUT_START, end);
        self.stage_at("COMPUTE_END", now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Kind;

    fn change(settings: &[(&str, Option<&str>)]) -> TraceChange {
        settings.iter().map(|(name, value)| ((*name).to_owned(), value.map(|value| vec![value.to_owned()]))).collect()
    }

    #[test]
    fn requests_are_picked_by_rate_and_count() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let traces = Traces::new(Some(folder.path().join("trace")))?;
        let picked = |model: &str| (0..10).map(|_| traces.begin(model, false).is_some()).collect::<Vec<_>>();
        let places =
            |model: &str| picked(model).into_iter().enumerate().filter(|(_, picked)| *picked).map(|(at, _)| at).collect::<Vec<_>>();
        assert!(places("a").is_empty());
        traces.change(None, &change(&[("trace_level", Some("TIMESTAMPS")), ("trace_rate", Some("3"))]))?;
        assert_eq!(places("a"), [0, 3, 6, 9]);
        // One model has its own rate, and its own end.
        traces.change(Some("b"), &change(&[("trace_rate", Some("1")), ("trace_count", Some("12"))]))?;
        assert_eq!(places("b").len(), 10);
        assert_eq!(traces.settings(Some("b")).trace_count, "2");
        assert_eq!(places("b"), [0, 1]);
        assert_eq!((&*traces.settings(None).trace_count, &*traces.settings(Some("a")).trace_rate), ("-1", "3"));
        // All are off, but for one, which is then as all are.
        traces.change(None, &change(&[("trace_level", Some("OFF"))]))?;
        traces.change(Some("b"), &change(&[("trace_level", Some("TIMESTAMPS")), ("trace_count", None)]))?;
        assert_eq!((places("a").len(), places("b").len()), (0, 10));
        traces.change(Some("b"), &change(&[("trace_level", None)]))?;
        assert!(places("b").is_empty());
        traces.change(Some("b"), &change(&[("trace_rate", None)]))?;
        assert!(traces.state().models.is_empty());
        traces.change(None, &change(&[("trace_rate", None)]))?;
        assert_eq!(traces.settings(Some("b")).trace_rate, "1000");
        // A change that is wrong in one place changes nothing.
        let wrong = change(&[("trace_rate", Some("5")), ("trace_count", Some("many"))]);
        assert_eq!(traces.change(None, &wrong).map_err(|fault| fault.kind), Err(Kind::Input));
        assert_eq!(traces.settings(None).trace_rate, "1000");
        Ok(())
    }

    #[test]
    fn traces_fill_one_file_after_the_other() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("trace");
        std::fs::write(folder.path().join("trace.1"), "of another server\n")?;
        let traces = Traces::new(Some(path.clone()))?;
        let on = [("trace_level", Some("TIMESTAMPS")), ("trace_rate", Some("1")), ("log_frequency", Some("2"))];
        traces.change(None, &change(&on))?;
        for _ in 0..5 {
            let mut trace = traces.begin("m", false);
            trace.stage("REQUEST_START");
            let mut trace = trace.ok_or("not picked")?;
            trace.step(&Times::default());
            traces.finish("m", &trace)?;
        }
        let lines = |name: &str| Ok::<_, io::Error>(std::fs::read_to_string(folder.path().join(name))?.lines().count());
        // One that is wanted elsewhere is none of the file's.
        traces.change(None, &change(&[("trace_level", Some("OFF"))]))?;
        traces.finish("m", &traces.begin("m", true).ok_or("not begun")?)?;
        assert!(traces.begin("m", false).is_none());
        assert_eq!((lines("trace")?, lines("trace.0")?, lines("trace.1")?, lines("trace.2")?, lines("trace.3")?), (0, 2, 1, 2, 1));
        assert!(Traces::new(Some(folder.path().join("no/such/folder"))).is_err());
        Ok(())
    }
}
