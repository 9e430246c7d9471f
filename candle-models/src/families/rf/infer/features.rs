//! `candle-infer rf features`.

use super::{open, samples};
use crate::cli::{self, Usage};
use crate::files::AtomicFile;
use crate::rf::Complex32;
use crate::rf::features::{COUNT, Extractor, FEATURES, Form, STATISTICS, SUMMARY, summarise};
use crate::rf::sigmf::Recording;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use parquet::column::writer::ColumnWriter;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Chunks that are read before they are extracted on all threads.
const AHEAD: usize = 64;

#[derive(Args)]
pub struct Arguments {
    /// The recording.
    #[arg(value_name = "FILE")]
    recording: PathBuf,
    /// Write them to FILE.safetensors (features [chunks, 18], seconds [chunks], summaries [groups, 18, 4]) or FILE.csv or FILE.parquet (a line for each chunk).
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Seconds of a chunk; what is left at the end and makes no whole one is left out.
    #[arg(long, value_name = "SECONDS", default_value = "0.2")]
    chunk: f64,
    /// Chunks of a group, over which mean, deviation, least and greatest are taken.
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    group: u32,
    /// Which definitions count.
    #[arg(long, value_enum, default_value = "repaired")]
    form: TypedForm,
}

#[derive(Clone, Copy, ValueEnum)]
enum TypedForm {
    /// What the names say, at any power.
    Repaired,
    /// As published, with 1e-12 W added wherever something is divided by.
    Compatible,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Csv,
    Parquet,
    Tensors,
}

impl Arguments {
    /// Reads the recording once, some chunks at a time.
    pub fn run(&self) -> Result<()> {
        let kind = match self.out.extension().and_then(|ending| ending.to_str()) {
            Some("csv") => Kind::Csv,
            Some("parquet") => Kind::Parquet,
            Some("safetensors") => Kind::Tensors,
            _ => return Err(Usage::error(format!("--out {}: expected a name in .safetensors, .parquet or .csv", self.out.display()))),
        };
        let recording = open(&self.recording)?;
        let (rate, form) = (
            recording.sample_rate()?,
            match self.form {
                TypedForm::Repaired => Form::Repaired,
                TypedForm::Compatible => Form::Compatible,
            },
        );
        let chunk = samples(self.chunk, rate, "--chunk")?;
        // Fails now, not after the recording was read, where the file cannot be written.
        let mut file = AtomicFile::create(&self.out)?;
        let found = extract(&recording, &Extractor::new(rate, chunk, form)?)?;
        if found.is_empty() {
            anyhow::bail!("{}: {} samples make no chunk of {chunk}", recording.path().display(), recording.len());
        }
        let seconds: Vec<f64> = (0..found.len()).map(|i| (i * chunk) as f64 / rate).collect();
        let written = match kind {
            Kind::Csv => csv(&mut file, &seconds, &found),
            Kind::Parquet => parquet(&mut file, &seconds, &found),
            Kind::Tensors => tensors(&mut file, &seconds, &found, self.group as usize),
        };
        written.with_context(|| self.out.display().to_string())?;
        file.commit()?;
        println!("{} chunks of {chunk} samples: {}", cli::count(found.len() as u64), self.out.display());
        Ok(())
    }
}

/// The features of all whole chunks.
fn extract(recording: &Recording, extractor: &Extractor) -> Result<Vec<[f64; COUNT]>> {
    let (chunk, count) = (extractor.samples(), (recording.len() / extractor.samples() as u64) as usize);
    let progress = cli::progress(count as u64, "chunks");
    let mut samples = vec![Complex32::default(); chunk * AHEAD.min(count)];
    let mut found = Vec::with_capacity(count);
    while found.len() < count {
        let first = found.len();
        let samples = &mut samples[..chunk * AHEAD.min(count - first)];
        recording.read((first * chunk) as u64, samples);
        let part: crate::Result<Vec<_>> =
            samples.par_chunks(chunk).map_init(|| extractor.clone(), |own, samples| own.extract(samples)).collect();
        let named = || {
            let bad = samples.chunks(chunk).position(|samples| extractor.clone().extract(samples).is_err()).unwrap_or_default();
            format!("{}: chunk {} from sample {} on", recording.path().display(), first + bad, (first + bad) * chunk)
        };
        found.extend(part.with_context(named)?);
        progress.set_position(found.len() as u64);
    }
    progress.finish_and_clear();
    Ok(found)
}

fn csv(to: &mut impl Write, seconds: &[f64], found: &[[f64; COUNT]]) -> Result<()> {
    let names: Vec<&str> = FEATURES.iter().map(|feature| feature.name).collect();
    writeln!(to, "chunk,seconds,{}", names.join(","))?;
    for (i, (seconds, features)) in seconds.iter().zip(found).enumerate() {
        let values: Vec<String> = features.iter().map(ToString::to_string).collect();
        writeln!(to, "{i},{seconds},{}", values.join(","))?;
    }
    Ok(())
}

/// The columns of the CSV in one group of rows.
fn parquet(to: &mut impl Write, seconds: &[f64], found: &[[f64; COUNT]]) -> Result<()> {
    let columns: String = FEATURES.iter().map(|feature| format!("required double {};", feature.name)).collect();
    let schema = parse_message_type(&format!("message features {{ required int64 chunk; required double seconds; {columns} }}"))?;
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, Arc::new(schema), Arc::new(WriterProperties::builder().build()))?;
    let mut rows = writer.next_row_group()?;
    let numbers: Vec<i64> = (0..found.len() as i64).collect();
    let mut of_feature = 0..COUNT;
    while let Some(mut column) = rows.next_column()? {
        match column.untyped() {
            ColumnWriter::Int64ColumnWriter(column) => column.write_batch(&numbers, None, None)?,
            ColumnWriter::DoubleColumnWriter(column) if column.get_descriptor().name() == "seconds" => {
                column.write_batch(seconds, None, None)?
            }
            ColumnWriter::DoubleColumnWriter(column) => {
                // Columns come in their order.
                let feature = of_feature.next().unwrap_or_default();
                let values: Vec<f64> = found.iter().map(|chunk| chunk[feature]).collect();
                column.write_batch(&values, None, None)?
            }
            _ => anyhow::bail!("a column of another type"),
        };
        column.close()?;
    }
    rows.close()?;
    writer.close()?;
    Ok(to.write_all(&bytes)?)
}

fn tensors(to: &mut impl Write, seconds: &[f64], found: &[[f64; COUNT]], group: usize) -> Result<()> {
    let summaries: Vec<[f64; SUMMARY]> = found.chunks(group).map(summarise).collect();
    let view =
        |shape: Vec<usize>, values: &'_ [f64]| -> Result<(Vec<usize>, Vec<u8>)> { Ok((shape, bytemuck::cast_slice(values).to_vec())) };
    let parts = [
        ("features", view(vec![found.len(), COUNT], found.as_flattened())?),
        ("seconds", view(vec![found.len()], seconds)?),
        ("summaries", view(vec![summaries.len(), COUNT, STATISTICS.len()], summaries.as_flattened())?),
    ];
    let views = parts.iter().map(|(name, (shape, bytes))| Ok((*name, TensorView::new(Dtype::F64, shape.clone(), bytes)?)));
    let views = views.collect::<Result<Vec<_>>>()?;
    let names = FEATURES.map(|feature| feature.name).join(",");
    let metadata = HashMap::from([("features".to_owned(), names), ("statistics".to_owned(), STATISTICS.join(","))]);
    to.write_all(&safetensors::serialize(views, Some(metadata))?)?;
    Ok(())
}

#[cfg(test)]
pub(super) fn write(recording: &std::path::Path, out: &std::path::Path, form: Form) -> Result<()> {
    let form = if form == Form::Repaired { TypedForm::Repaired } else { TypedForm::Compatible };
    Arguments { recording: recording.to_owned(), out: out.to_owned(), chunk: 0.2, group: 5, form }.run()
}
