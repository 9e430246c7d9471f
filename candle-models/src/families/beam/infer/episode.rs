//! What became of one sweep, and how it is written.

use super::sweeps::Sweeps;
use crate::families::beam::metrics::{SATISFIED_DB, decibels};
use crate::infer::{Column, Output, excerpt, line};
use anyhow::Result;
use safetensors::tensor::Dtype;
use serde_json::{Map, Value};
use std::path::Path;

/// What became of a sweep.
#[derive(Default)]
pub struct Episode {
    /// The beams that were measured with, `[T, 2 N_RX]`.
    pub beams: Vec<f32>,
    /// What was measured, `[T, 2]`.
    pub measurements: Vec<f32>,
    /// The beam to receive with, `[2 N_RX]`.
    pub receive: Vec<f32>,
    /// The beam to transmit with, `[2 N_TX]`.
    pub transmit: Vec<f32>,
    /// Its number in the codebook, with scheme C1.
    pub index: Option<u32>,
    /// `|w^H H f|^2`, where the channel is known.
    pub gain: Option<f32>,
}

/// A result of an episode.
enum Values {
    Floats(Vec<f32>),
    Indices(Vec<u32>),
}

impl Episode {
    /// Whether the link is good enough at that SNR.
    pub fn is_satisfied(&self, snr_db: f32) -> bool {
        self.gain.is_some_and(|gain| decibels(gain) + f64::from(snr_db) >= SATISFIED_DB)
    }

    /// Everything about it, by name and shape; what an episode has, the others of its file have too.
    fn values(&self, sweeps: &Sweeps, number: usize) -> Vec<(Column, Values)> {
        let (start, snr_db) = (sweeps.start[number], sweeps.snr_db[number]);
        let floats = |name, shape: &[usize], x: &[f32]| (Column::new(name, Dtype::F32, shape), Values::Floats(x.to_vec()));
        let index = |name, x| (Column::new(name, Dtype::U32, &[]), Values::Indices(vec![x]));
        let mut values = vec![
            index("start", start),
            floats("snr_db", &[], &[snr_db]),
            floats("measurements", &[sweeps.measurements, 2], &self.measurements),
            floats("beams", &[sweeps.measurements, self.receive.len()], &self.beams),
            floats("receive", &[self.receive.len()], &self.receive),
            floats("transmit", &[self.transmit.len()], &self.transmit),
        ];
        values.extend(self.index.map(|i| index("index", i)));
        if let Some(gain) = self.gain {
            let satisfied = u32::from(self.is_satisfied(snr_db));
            values.extend([floats("gain_db", &[], &[decibels(gain) as f32]), index("satisfied", satisfied)]);
        }
        values
    }

    /// Starts the tensors of a file's episodes, of which this is the first.
    pub fn start(&self, sweeps: &Sweeps, output: &mut Output) -> Result<()> {
        let columns: Vec<Column> = self.values(sweeps, 0).into_iter().map(|(column, _)| column).collect();
        Ok(output.start_tensors(&columns, &[sweeps.count])?)
    }

    /// Writes it where results go; to a table if it is `shown`.
    pub fn write(&self, (sweeps, number): (&Sweeps, usize), path: &Path, shown: bool, output: &mut Output) -> Result<()> {
        match output {
            Output::Table if !shown => {}
            Output::Table => line(self.text(sweeps, number))?,
            Output::Lines(..) => {
                let mut object = Map::new();
                object.insert("file".into(), path.display().to_string().into());
                object.insert("episode".into(), number.into());
                object.extend(self.values(sweeps, number).into_iter().map(|(column, values)| (column.name.clone(), values.json(&column))));
                output.json(&object)?;
            }
            Output::Tensors(..) => {
                for (i, (_, values)) in self.values(sweeps, number).into_iter().enumerate() {
                    match values {
                        Values::Floats(x) => output.value(i, number, 0, x.into_iter().map(f32::to_le_bytes))?,
                        Values::Indices(x) => output.value(i, number, 0, x.into_iter().map(u32::to_le_bytes))?,
                    }
                }
            }
        }
        Ok(())
    }

    fn text(&self, sweeps: &Sweeps, number: usize) -> String {
        let snr_db = sweeps.snr_db[number];
        let satisfied = if self.is_satisfied(snr_db) { "satisfied" } else { "not satisfied" };
        let gain = self.gain.map_or(String::new(), |gain| format!(", gain {:.2} dB, {satisfied}", decibels(gain)));
        let transmit = self.index.map_or_else(|| excerpt("transmit", &self.transmit), |i| format!("transmit beam {i}"));
        let (start, receive) = (sweeps.start[number], excerpt("receive", &self.receive));
        format!("episode {number}: start {start}, SNR {snr_db} dB{gain}; {receive}, {transmit}")
    }
}

impl Values {
    fn json(self, column: &Column) -> Value {
        match (self, column.shape.is_empty()) {
            (Self::Floats(x), true) => x[0].into(),
            (Self::Indices(x), true) => x[0].into(),
            (Self::Floats(x), false) => x.into(),
            (Self::Indices(x), false) => x.into(),
        }
    }
}
