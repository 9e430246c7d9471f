//! Products by dtype: speed over f32, the error that comes with it, and the share of the peak; square matrices and the networks' layers.

use crate::figure::{Figure, Sense};
use crate::formulas::{self, Refused, Roofs};
use crate::harness::{self, Comparison, InPool, Rounds, Settings, Timed, pool};
use crate::host::Host;
use crate::network::{EVERY, Network, Place};
use crate::ops::{Demand, LAYERS, Machine, Placed, Product, Site, Weights, Work, gpu, normal};
use crate::report::charts::{self, Across, Panel, Sample};
use crate::stats::Summary;
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use crate::table::{NOT_TIMED, Record, Shown, micros, rounds_in_turn};
use Shown::{Csv, Everywhere};
use anyhow::Result;
use candle_models::bundle::{Bundle, Role};
use candle_models::random::Random;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Products of matrices and of the networks' layers by dtype: speed, error against f64, share of the peak.
#[derive(clap::Args)]
pub struct Precision {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// Rows and columns of square products; 8192 takes a while on a CPU.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [512, 1024, 2048])]
    products: Vec<usize>,
    /// Rows that the layers get.
    #[arg(long, value_name = "ROWS", value_delimiter = ',', default_values_t = [1, 32, 256])]
    rows: Vec<usize>,
}

impl Suite for Precision {
    const NAME: &'static str = "precision";
    const TITLE: &'static str = "Products by dtype";
    type Row = PrecisionRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<PrecisionRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&self.products, &self.rows])?;
        let suite = PrecisionSuite {
            networks: bench.networks(common, EVERY)?,
            products: self.products.clone(),
            rows: self.rows.clone(),
            threads: common.threads.clone(),
            place: self.device.open()?,
        };
        bench.begin(&suite.describe(&common.settings), None);
        let refused = suite.run(&common.settings, &bench.host.clone(), |row| bench.add(row))?;
        bench.refuse_rows(&refused);
        Ok(())
    }
}

/// Entries of a product whose error is measured.
const SAMPLED: usize = 256;
/// Values that a register of the CPU's or a tile of a GPU's products holds.
const ALIGNED: usize = 16;
/// Dtypes in the order of the table.
pub const DTYPES: [&str; 5] = ["f32", "tf32", "bf16", "f16", "q8"];

/// What is measured.
#[derive(Debug, Clone)]
pub struct PrecisionSuite {
    /// Rows and columns of square products.
    pub products: Vec<usize>,
    /// Rows that the layers get.
    pub rows: Vec<usize>,
    /// Networks whose layers of odd sizes are measured beside padded ones.
    pub networks: Vec<Network>,
    /// Threads of a call.
    pub threads: Vec<usize>,
    /// Where they compute.
    pub place: Place,
}

/// A product in one dtype.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PrecisionRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// `product` of square matrices, `layer` of a network, or `padded layer`.
    pub what: String,
    /// Rows, terms, columns.
    pub shape: [usize; 3],
    /// `f32`, `tf32`, `bf16`, `f16` or `q8`: of the weights on a CPU, of everything but sums on a GPU.
    pub dtype: String,
    /// Threads of a call.
    pub threads: usize,
    /// `cpu` or `cuda:0`.
    pub device: String,
    /// Of a product in microseconds; nothing where `unavailable` says why.
    pub latency_us: Option<Summary>,
    /// How many times as fast as f32, a padded layer as fast as the layer, from rounds in turn.
    pub over: Option<Comparison>,
    /// The layer that was padded: terms and columns.
    #[serde(default)]
    pub padded: Option<[usize; 2]>,
    /// Root of the mean squared error of a sample of entries, over that of the entries themselves, both against f64.
    pub error: Option<f64>,
    /// The most that the machine reaches in such work.
    pub roofs: Option<Roofs>,
    /// Why there is no figure.
    #[serde(default)]
    pub unavailable: Option<String>,
}

impl PrecisionRow {
    fn work(&self) -> Work {
        work(self.shape, &self.dtype, self.device != "cpu")
    }

    fn placed(&self) -> Option<Placed> {
        Some(Placed { work: self.work(), us: self.latency_us.as_ref()?.p50, roofs: self.roofs? })
    }

    /// In one line, for the terminal.
    pub fn line(&self) -> String {
        let [rows, terms, columns] = self.shape;
        let found = match (&self.latency_us, &self.unavailable) {
            (Some(latency), _) => {
                let over = self.over.as_ref().map_or_else(String::new, |c| format!(", {}", c.in_words()));
                format!("{} us{over}, error {:.1e}", micros(latency.p50), self.error.unwrap_or(f64::NAN))
            }
            (None, why) => format!("not available: {}", why.as_deref().unwrap_or("")),
        };
        format!("{} {rows} x {terms} x {columns} | {} | {} threads | {found}", self.what, self.dtype, self.threads)
    }
}

impl Record for PrecisionRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("What", Everywhere),
        ("Rows x terms x columns", Everywhere),
        ("Dtype", Everywhere),
        ("Threads", Everywhere),
        ("p50 us", Everywhere),
        ("Over f32 or unpadded", Everywhere),
        ("95% of it", Everywhere),
        ("Error", Everywhere),
        (Placed::COLUMNS[0], Everywhere),
        (Placed::COLUMNS[1], Csv),
        (Placed::COLUMNS[2], Csv),
        (Placed::COLUMNS[3], Everywhere),
        (Placed::COLUMNS[4], Everywhere),
        (Placed::COLUMNS[5], Csv),
        (Placed::COLUMNS[6], Csv),
        ("Requests", Csv),
        ("Not available", Csv),
        ("Device", Everywhere),
    ];
    const IDENTITY: &'static [&'static str] = &["What", "Rows x terms x columns", "Dtype", "Threads", "Device"];

    fn cells(&self) -> Vec<String> {
        let [rows, terms, columns] = self.shape;
        let over = |cell: &dyn Fn(&Comparison) -> String| self.over.as_ref().map_or_else(String::new, cell);
        let latency = self.latency_us.as_ref();
        let mut cells = vec![
            self.what.clone(),
            format!("{rows} x {terms} x {columns}"),
            self.dtype.clone(),
            self.threads.to_string(),
            latency.map_or_else(|| "not available".to_owned(), |l| micros(l.p50)),
            over(&|c| format!("{:.2}", c.ratio)),
            over(&|c| format!("{:.2} to {:.2}", c.ratio_ci.low, c.ratio_ci.high)),
            self.error.map_or_else(String::new, |error| format!("{error:.1e}")),
        ];
        cells.extend(self.placed().map_or_else(Default::default, |placed| placed.cells()));
        cells.extend([
            latency.map_or_else(String::new, |l| l.n.to_string()),
            self.unavailable.clone().unwrap_or_default(),
            self.device.clone(),
        ]);
        cells
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        let none = Figure::new("mean time", "us", Sense::Time, f64::NAN);
        vec![self.latency_us.as_ref().map_or(none, |latency| Figure::mean("mean time", latency))]
    }

    fn told(&self) -> Option<String> {
        Some(self.line())
    }

    fn often(&self) -> String {
        match (&self.over, &self.latency_us) {
            (Some(over), _) => rounds_in_turn(Some(over)),
            (None, Some(latency)) => format!("{} calls", latency.n),
            (None, None) => NOT_TIMED.to_owned(),
        }
    }

    fn bound(&self) -> Option<String> {
        self.placed().map(|placed| placed.in_words())
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        let sample = |row: &Self| {
            let us = row.latency_us.as_ref().filter(|_| row.what == "product")?.p50;
            let rate = formulas::gflop_per_s(row.work().flop, us);
            let chart = format!("{}, {}", charts::threads(row.threads), row.device);
            Some(Sample { chart, series: row.dtype.clone(), point: (row.shape[0] as f64, rate) })
        };
        let charts = charts::lines(Across::Logarithmic, rows.iter().filter_map(sample));
        charts::present([("GFLOP/s of square products, by size", "Both axes are logarithmic.", charts::Shown::Open, charts)])
    }
}

/// What a product computes and moves: on a CPU weights alone are narrow, on a GPU everything is.
fn work([rows, terms, columns]: [usize; 3], dtype: &str, narrow: bool) -> Work {
    let width = |dtype: &str| match dtype {
        "bf16" | "f16" => 2.0,
        "q8" => 1.0,
        _ => 4.0,
    };
    let (weights, values) = (width(dtype), if narrow { width(dtype) } else { 4.0 });
    let bytes = weights * (terms * columns) as f64 + values * (rows * (terms + columns)) as f64;
    Work { flop: formulas::product_flop(rows, terms, columns), bytes }
}

/// Why a dtype has no products on a device.
fn unavailable(dtype: &str, cuda: bool) -> Option<&'static str> {
    match (dtype, cuda) {
        ("tf32", false) => Some("TF32 is a mode of NVIDIA's tensor cores"),
        ("f16", false) => Some("the CPU's executor holds weights in f32, bf16 or 8 bits"),
        ("q8", true) => Some("weights of 8 bits are for the CPU: a GPU computes in f32, bf16 or f16"),
        _ => None,
    }
}

/// A product to be timed, with the error of its result.
struct Made<'a> {
    rounds: Box<dyn Rounds + 'a>,
    error: f64,
}

impl PrecisionSuite {
    /// The method in words, for the report.
    pub fn describe(&self, settings: &Settings) -> String {
        format!(
            "On a CPU products with weights that the engine has packed in that dtype, inputs and outputs f32, copies of both counted in; on a GPU matrices in that dtype, {} products \
             before it is waited for, the time of one. f32 alone: {} The others against f32: {} Error: root mean square of {SAMPLED} entries' differences from f64 over that of the \
             entries, inputs normal. Share and bound as in `roofline`, against the peak of products of that dtype.",
            gpu::CALLS,
            settings.describe(),
            settings.describe_comparison()
        )
    }

    fn shapes(&self) -> Vec<(&'static str, [usize; 3])> {
        let products = self.products.iter().map(|&n| ("product", [n; 3]));
        let layers = self.rows.iter().flat_map(|&rows| LAYERS.map(|[inputs, outputs]| ("layer", [rows, inputs, outputs])));
        products.chain(layers).collect()
    }

    /// Terms and columns of the networks' layers that do not fill whole registers, with what would.
    fn odd_layers(&self) -> Result<BTreeSet<([usize; 2], [usize; 2])>> {
        let mut odd = BTreeSet::new();
        for network in &self.networks {
            for spec in network.family.parameters(&Bundle::open(&network.bundle)?)?.iter().filter(|spec| spec.role == Role::Matrix) {
                let [inputs, outputs] = spec.shape[..] else { continue };
                let padded = [inputs.next_multiple_of(ALIGNED), outputs.next_multiple_of(ALIGNED)];
                // A handful of columns is no matrix.
                if padded != [inputs, outputs] && inputs.min(outputs) >= ALIGNED {
                    odd.insert(([inputs, outputs], padded));
                }
            }
        }
        Ok(odd)
    }

    /// What is measured on a number of threads: every shape in every dtype, then layers of odd sizes padded, in f32.
    fn rows(&self, threads: usize, host: &Host) -> Result<Vec<PrecisionRow>> {
        let row = |what: &str, shape, dtype: &str| PrecisionRow {
            host: host.clone(),
            what: what.to_owned(),
            shape,
            dtype: dtype.to_owned(),
            threads,
            device: self.place.name(),
            latency_us: None,
            over: None,
            padded: None,
            error: None,
            roofs: None,
            unavailable: unavailable(dtype, self.place.device.is_cuda()).map(str::to_owned),
        };
        let mut rows: Vec<_> = self.shapes().into_iter().flat_map(|(what, shape)| DTYPES.map(|dtype| row(what, shape, dtype))).collect();
        for (layer, [inputs, outputs]) in self.odd_layers()? {
            let padded = |&rows: &usize| PrecisionRow { padded: Some(layer), ..row("padded layer", [rows, inputs, outputs], "f32") };
            rows.extend(self.rows.iter().map(padded));
        }
        Ok(rows)
    }

    /// Measures everything; `seen` is called for each row. What lay above its roof is no row: it is named in what comes back.
    pub fn run(&self, settings: &Settings, host: &Host, mut seen: impl FnMut(&PrecisionRow)) -> Result<Vec<String>> {
        let mut refused = Vec::new();
        for &threads in if self.place.device.is_cuda() { &[1][..] } else { &self.threads } {
            let pool = pool(threads)?;
            let mut machine = Machine::new(Site::of(&self.place.device, &pool), settings);
            for row in self.rows(threads, host)? {
                let name = format!("{} {:?} in {}, {threads} threads", row.what, row.shape, row.dtype);
                match self.measure(row, &pool, &mut machine, settings) {
                    Ok(row) => seen(&row),
                    Err(error) if error.is::<Refused>() => refused.push(format!("{name}: {error}")),
                    Err(error) => return Err(error.context(name)),
                }
            }
        }
        Ok(refused)
    }

    fn measure(
        &self,
        row: PrecisionRow,
        pool: &Arc<rayon::ThreadPool>,
        machine: &mut Machine,
        settings: &Settings,
    ) -> Result<PrecisionRow> {
        settings.interrupt.check()?;
        if row.unavailable.is_some() {
            return Ok(row);
        }
        let mut made = self.make(row.shape, &row.dtype, pool)?;
        // What it is held against: the layer as it is, or the same shape in f32.
        let other = match row.padded {
            Some([inputs, outputs]) => Some([row.shape[0], inputs, outputs]),
            None => (row.dtype != "f32").then_some(row.shape),
        };
        let (latency_us, over) = match other {
            None => (harness::measure(&mut *made.rounds, settings)?.latency_us, None),
            Some(shape) => {
                let compared = harness::compare(&mut *made.rounds, &mut *self.make(shape, "f32", pool)?.rounds, settings)?;
                (compared.ours_us.clone(), Some(compared))
            }
        };
        let roofs = Some(machine.over(&Demand::of(row.work(), &row.dtype), latency_us.p50)?);
        Ok(PrecisionRow { latency_us: Some(latency_us), over, error: Some(made.error), roofs, ..row })
    }

    fn make(&self, shape: [usize; 3], dtype: &str, pool: &Arc<rayon::ThreadPool>) -> Result<Made<'_>> {
        let [rows, inputs, outputs] = shape;
        let error_of =
            |x: &[f32], weight: &[f32], found: Vec<f32>| error(x, weight, outputs, |row, column| f64::from(found[row * outputs + column]));
        if self.place.device.is_cuda() {
            let (x, weight) = (normal("x", &[rows, inputs], 1.0)?, normal("weight", &[inputs, outputs], 1.0)?);
            let product = gpu::Product::new(&self.place.device, [&x, &weight], dtype)?;
            let error = error_of(&x.flatten_all()?.to_vec1()?, &weight.flatten_all()?.to_vec1()?, product.output()?);
            return Ok(Made { rounds: Box::new(product.rounds()), error });
        }
        let mut product = Product::new([inputs, outputs], Weights::named(dtype), rows, pool.current_num_threads())?;
        let found = product.output()?;
        let error = error_of(&product.x, &product.weight, found);
        Ok(Made { rounds: Box::new(InPool { pool: pool.clone(), subject: Timed(product) }), error })
    }
}

/// Relative root mean square error of sampled entries of `x w`, computed anew in f64: `x` `[rows, terms]`, `w` `[terms, columns]`.
fn error(x: &[f32], w: &[f32], columns: usize, found: impl Fn(usize, usize) -> f64) -> f64 {
    let terms = w.len() / columns;
    let rows = x.len() / terms;
    let random = Random::new(11);
    let (mut squares, mut scale) = (0.0, 0.0);
    for i in 0..SAMPLED as u64 {
        let (row, column) =
            (random.stream("row").below(i, rows as u32) as usize, random.stream("column").below(i, columns as u32) as usize);
        let exact: f64 = (0..terms).map(|t| f64::from(x[row * terms + t]) * f64::from(w[t * columns + column])).sum();
        squares += (found(row, column) - exact).powi(2);
        scale += exact.powi(2);
    }
    (squares / scale).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::markdown;
    use crate::testing;

    #[test]
    fn every_dtype_has_a_row_with_its_error_or_the_reason_why_not() {
        let directory = tempfile::tempdir().unwrap();
        let networks = vec![testing::network("mlp", directory.path())];
        let suite = PrecisionSuite { products: vec![48], rows: vec![3], networks, threads: vec![1], place: Place::cpu() };
        let settings = Settings { warm_up_s: 0.0, window_s: 1e-3, rounds: 4, ..Settings::default() };
        let mut rows = Vec::new();
        let refused = suite.run(&settings, &Host::detect(None), |row| rows.push(row.clone())).unwrap();
        let padded: Vec<PrecisionRow> = rows.extract_if(.., |row| row.padded.is_some()).collect();
        assert_eq!(padded.len() + refused.iter().filter(|name| name.starts_with("padded")).count(), suite.odd_layers().unwrap().len());
        for row in &padded {
            let [_, inputs, outputs] = row.shape;
            assert!(inputs % ALIGNED == 0 && outputs % ALIGNED == 0 && row.padded != Some([inputs, outputs]));
            assert!(row.over.is_some() && row.bound().is_some());
        }
        assert_eq!(
            rows.len() + padded.len() + refused.len(),
            DTYPES.len() * (1 + LAYERS.len()) + suite.odd_layers().unwrap().len(),
            "{refused:?}"
        );
        for row in &rows {
            assert_eq!(row.cells().len(), PrecisionRow::COLUMNS.len());
            let error = row.error.unwrap_or(0.0);
            match row.dtype.as_str() {
                "f32" => assert!(error < 1e-6 && row.over.is_none(), "{row:?}"),
                "bf16" => assert!((1e-4..5e-3).contains(&error) && row.over.is_some(), "{row:?}"),
                "q8" => assert!((1e-3..3e-2).contains(&error) && row.over.is_some(), "{row:?}"),
                _ => assert!(row.latency_us.is_none() && row.line().contains("not available: "), "{row:?}"),
            }
        }
        assert!(markdown(&rows).contains("| product | 48 x 48 x 48 | tf32 | 1 | not available |"));
    }

    #[test]
    fn an_error_is_relative_and_of_the_sampled_entries() {
        // 2 x 3 times 3 x 2, each entry off by a hundredth of itself.
        let (x, w) = ([1.0, 2.0, 3.0, -1.0, 0.5, 2.0], [1.0, 0.0, 2.0, 1.0, -1.0, 4.0]);
        let exact = |row: usize, column: usize| (0..3).map(|t| f64::from(x[3 * row + t]) * f64::from(w[2 * t + column])).sum::<f64>();
        assert!(error(&x, &w, 2, exact) == 0.0);
        assert!((error(&x, &w, 2, |row, column| 1.01 * exact(row, column)) - 0.01).abs() < 1e-12);
    }

    #[test]
    fn bytes_follow_the_dtype_of_weights_or_of_everything() {
        assert_eq!(work([2, 3, 5], "f32", false), Work { flop: 60.0, bytes: 4.0 * 31.0 });
        assert_eq!(work([2, 3, 5], "q8", false).bytes, 15.0 + 4.0 * 16.0);
        assert_eq!(work([2, 3, 5], "bf16", true).bytes, 2.0 * 31.0);
    }
}
