//! Products by dtype: speed over f32, the error that comes with it, and the share of the peak; square matrices and the policies' layers.

use crate::figure::{Figure, Sense};
use crate::formulas::{self, Refused, Roofs};
use crate::gpu::OnDevice;
use crate::harness::{self, Comparison, InPool, Rounds, Settings, Timed, pool};
use crate::host::Host;
use crate::network::{Network, Place};
use crate::ops::{LAYERS, Machine, Placed, Product, Weights, Work};
use crate::report::charts::{self, Across, Panel, Sample};
use crate::stats::Summary;
use crate::table::{NOT_TIMED, Record, Shown, micros, rounds_in_turn};
use Shown::{Csv, Everywhere};
use anyhow::{Context, Result};
use candle_core::{DType, Tensor};
use candle_models::bundle::{Bundle, Role};
use candle_models::engine;
use candle_models::random::Random;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Entries of a product whose error is measured.
const SAMPLED: usize = 256;
/// Products put on a GPU before it is waited for.
const CALLS: usize = 10;
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
    /// `product` of square matrices, `layer` of a policy, or `padded layer`.
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
            "On a CPU products with weights that the engine has packed in that dtype, inputs and outputs f32, copies of both counted in; on a GPU matrices in that dtype, {CALLS} products \
             before it is waited for, the time of one. f32 alone: {} The others against f32: {} Error: root mean square of {SAMPLED} entries' differences from f64 over that of the \
             entries, inputs normal. Share and bound as in `roofline`, against the peak of products with such weights.",
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
            for spec in engine::parameters(&Bundle::open(&network.bundle)?)?.iter().filter(|spec| spec.role == Role::Matrix) {
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

    /// Layers of odd sizes beside padded ones, in f32.
    fn padded(&self, row: &PrecisionRow, pool: &Arc<rayon::ThreadPool>, settings: &Settings) -> Result<Vec<PrecisionRow>> {
        let mut found = Vec::new();
        for ([inputs, outputs], [padded_inputs, padded_outputs]) in self.odd_layers()? {
            for &rows in &self.rows {
                let shape = [rows, padded_inputs, padded_outputs];
                let (mut padded, mut plain) = (self.make(shape, "f32", pool)?, self.make([rows, inputs, outputs], "f32", pool)?);
                let over = harness::compare(&mut *padded.rounds, &mut *plain.rounds, settings)?;
                found.push(PrecisionRow {
                    what: "padded layer".to_owned(),
                    shape,
                    latency_us: Some(each(over.ours_us.clone(), if row.device == "cpu" { 1 } else { CALLS })),
                    over: Some(over),
                    padded: Some([inputs, outputs]),
                    error: Some(padded.error),
                    ..row.clone()
                });
            }
        }
        Ok(found)
    }

    /// Measures everything; `seen` is called for each row. What lay above its roof is no row: it is named in what comes back.
    pub fn run(&self, settings: &Settings, host: &Host, mut seen: impl FnMut(&PrecisionRow)) -> Result<Vec<String>> {
        let cuda = self.place.device.is_cuda();
        let mut refused = Vec::new();
        for &threads in if cuda { &[1][..] } else { &self.threads } {
            let pool = pool(threads)?;
            let device_roofs = if cuda { Some(self.device_roofs(settings)?) } else { None };
            let mut machine = Machine::new(&pool, settings);
            let empty = PrecisionRow {
                host: host.clone(),
                what: String::new(),
                shape: [0; 3],
                dtype: "f32".to_owned(),
                threads,
                device: self.place.name(),
                latency_us: None,
                over: None,
                padded: None,
                error: None,
                roofs: None,
                unavailable: None,
            };
            for (what, shape) in self.shapes() {
                for dtype in DTYPES {
                    let unavailable = unavailable(dtype, cuda).map(str::to_owned);
                    let row = PrecisionRow { what: what.to_owned(), shape, dtype: dtype.to_owned(), unavailable, ..empty.clone() };
                    let name = format!("{what} {shape:?} in {dtype}, {threads} threads");
                    match self.measure(row, &pool, &mut machine, device_roofs, settings) {
                        Ok(row) => seen(&row),
                        Err(error) if error.is::<Refused>() => refused.push(format!("{name}: {error}")),
                        Err(error) => return Err(error.context(name)),
                    }
                }
            }
            self.padded(&empty, &pool, settings)?.iter().for_each(&mut seen);
        }
        Ok(refused)
    }

    fn measure(
        &self,
        row: PrecisionRow,
        pool: &Arc<rayon::ThreadPool>,
        machine: &mut Machine,
        device_roofs: Option<Roofs>,
        settings: &Settings,
    ) -> Result<PrecisionRow> {
        settings.interrupt.check()?;
        if row.unavailable.is_some() {
            return Ok(row);
        }
        let mut made = self.make(row.shape, &row.dtype, pool)?;
        let (mut latency_us, over) = if row.dtype == "f32" {
            (harness::measure(&mut *made.rounds, settings)?.latency_us, None)
        } else {
            let mut wide = self.make(row.shape, "f32", pool)?;
            let compared = harness::compare(&mut *made.rounds, &mut *wide.rounds, settings)?;
            (compared.ours_us.clone(), Some(compared))
        };
        if device_roofs.is_some() {
            latency_us = each(latency_us, CALLS);
        }
        let roofs = match device_roofs {
            // The peak of f32 says nothing of the tensor cores' modes.
            Some(roofs) => Some(roofs).filter(|_| row.dtype == "f32"),
            None => Some(machine.over(row.work(), Weights::named(&row.dtype), latency_us.p50)?),
        };
        Ok(PrecisionRow { latency_us: Some(latency_us), over, error: Some(made.error), roofs, ..row })
    }

    fn make(&self, shape: [usize; 3], dtype: &str, pool: &Arc<rayon::ThreadPool>) -> Result<Made<'_>> {
        if self.place.device.is_cuda() {
            return self.on_device(shape, dtype);
        }
        let [rows, inputs, outputs] = shape;
        let mut product = Product::new([inputs, outputs], Weights::named(dtype), rows, pool.current_num_threads())?;
        let found = product.output()?;
        let error = error(&product.x, &product.weight, outputs, |row, column| f64::from(found[row * outputs + column]));
        Ok(Made { rounds: Box::new(InPool { pool: pool.clone(), subject: Timed(product) }), error })
    }

    fn on_device(&self, [rows, terms, columns]: [usize; 3], dtype: &str) -> Result<Made<'_>> {
        let device = &self.place.device;
        let narrow = match dtype {
            "bf16" => DType::BF16,
            "f16" => DType::F16,
            _ => DType::F32,
        };
        let random = |name: &str, shape: [usize; 2]| -> Result<(Vec<f32>, Tensor)> {
            let mut values = vec![0.0; shape[0] * shape[1]];
            Random::new(5).stream(name).fill_normal(0, &mut values);
            let tensor = Tensor::from_slice(&values, &shape, device)?.to_dtype(narrow)?;
            Ok((values, tensor))
        };
        let ((x, a), (weight, b)) = (random("x", [rows, terms])?, random("weight", [terms, columns])?);
        let reduced = dtype == "tf32";
        let operation = move || {
            // A setting of the whole process: set anew, for the other side of a comparison has its own.
            candle_core::cuda::set_gemm_reduced_precision_f32(reduced);
            a.matmul(&b)
        };
        let found = operation()?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let error = error(&x, &weight, columns, |row, column| f64::from(found[row * columns + column]));
        Ok(Made { rounds: Box::new(Timed(OnDevice { operation, calls: CALLS, device })), error })
    }

    /// What the device reaches in a large f32 product and a copy.
    fn device_roofs(&self, settings: &Settings) -> Result<Roofs> {
        let n = self.products.iter().copied().max().unwrap_or(1024);
        let mut product = self.on_device([n; 3], "f32")?;
        let us = harness::measure(&mut *product.rounds, settings)?.latency_us.p50 / CALLS as f64;
        let device = &self.place.device;
        let from = Tensor::zeros(1 << 28, DType::F32, device).context("a buffer of a gigabyte")?;
        let operation = || from.copy();
        let copy = harness::measure(&mut Timed(OnDevice { operation, calls: CALLS, device }), settings)?.latency_us.p50 / CALLS as f64;
        let gflop_per_s = formulas::gflop_per_s(formulas::product_flop(n, n, n), us);
        Ok(Roofs { gflop_per_s, gb_per_s: formulas::gb_per_s(8.0 * (1u64 << 28) as f64, copy) })
    }
}

/// The times of one of several products that were timed together.
fn each(summary: Summary, calls: usize) -> Summary {
    let one = |us: f64| us / calls as f64;
    let Summary { n, mean, mean_ci, p50, p90, p95, p99, p99_9, max } = summary;
    Summary {
        n,
        mean: one(mean),
        mean_ci: crate::stats::Interval { low: one(mean_ci.low), high: one(mean_ci.high) },
        p50: one(p50),
        p90: p90.map(one),
        p95: p95.map(one),
        p99: p99.map(one),
        p99_9: p99_9.map(one),
        max: one(max),
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

    #[test]
    fn every_dtype_has_a_row_with_its_error_or_the_reason_why_not() {
        let networks = vec![Network::open(std::path::Path::new("../weights/policy-mlp")).unwrap()];
        let suite = PrecisionSuite { products: vec![48], rows: vec![3], networks, threads: vec![1], place: Place::cpu() };
        let settings = Settings { warm_up_s: 0.0, window_s: 1e-3, rounds: 4, ..Settings::default() };
        let mut rows = Vec::new();
        let refused = suite.run(&settings, &Host::detect(None), |row| rows.push(row.clone())).unwrap();
        let padded: Vec<PrecisionRow> = rows.extract_if(.., |row| row.padded.is_some()).collect();
        assert_eq!(padded.len(), suite.odd_layers().unwrap().len());
        for row in &padded {
            let [_, inputs, outputs] = row.shape;
            assert!(inputs % ALIGNED == 0 && outputs % ALIGNED == 0 && row.padded != Some([inputs, outputs]) && row.over.is_some());
        }
        assert_eq!(rows.len() + refused.len(), DTYPES.len() * (1 + LAYERS.len()), "{refused:?}");
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
