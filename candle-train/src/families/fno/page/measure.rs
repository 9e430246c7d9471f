//! What is the same for every equation: answers, tables of errors, spectra, pictures.

use super::PRINTED;
use super::heat::{Colours, Map, Row as Maps, picture, range};
use crate::families::fno::fields::Fields;
use crate::families::fno::loss::Norm;
use crate::families::fno::stored::Stored;
use crate::feed::values;
use crate::report::figure::{Axes, Line, chart};
use crate::report::sections::of_seeds;
use candle_models::Result;
use candle_models::fno::FnoConfig;
use candle_models::fno::metrics::{relative_h1, relative_l2};
use candle_models::fno::physics::spectrum;

/// The least energy that a chart shows.
const LEAST: f64 = 1e-12;

/// An operator, once for every seed it was trained with.
pub struct Model {
    pub seeds: Vec<Stored>,
}

/// Pairs to measure by.
pub struct Test {
    /// The file's name without its ending, or what was made.
    pub name: String,
    pub pairs: Fields,
}

/// Whoever answers, and what: an operator, a baseline, the truth.
#[derive(Clone)]
pub struct Row {
    pub name: String,
    /// What a legend has room for.
    pub short: String,
    pub learnt: bool,
    /// By test and seed, `[N, n, m]`; a baseline has one seed.
    pub answers: Vec<Vec<Vec<f32>>>,
}

impl Model {
    pub fn config(&self) -> &FnoConfig {
        &self.seeds[0].config
    }

    fn name(&self) -> String {
        let seeds = if self.seeds.len() == 1 { "one seed".to_owned() } else { format!("{} seeds", self.seeds.len()) };
        let pairs = self.seeds[0].pairs.map_or_else(String::new, |pairs| format!(" of {pairs} pairs"));
        format!("**{}** ({seeds}{pairs})", self.config().name())
    }

    /// The shortest wave that it computes with: half of its modes lie on either side of 0.
    pub fn most(&self) -> usize {
        self.config().modes[1] / 2
    }
}

impl Test {
    /// `3 x 4`.
    pub fn grid(&self) -> String {
        let [n, m] = self.pairs.grid;
        format!("{n} x {m}")
    }

    /// Of every pair of an answer `[N, n, m]`, what is measured.
    pub fn each<T>(&self, answers: &[f32], of: impl Fn(&[f32], [&[f32]; 2]) -> Result<T>) -> Result<Vec<T>> {
        answers.chunks_exact(self.pairs.widths()[1]).enumerate().map(|(i, answer)| of(answer, self.pairs.pair(i))).collect()
    }

    /// The relative error of every pair.
    pub fn errors(&self, answers: &[f32], norm: Norm) -> Vec<f64> {
        let rows = answers.chunks_exact(self.pairs.widths()[1]).enumerate();
        rows.map(|(i, answer)| {
            let truth = self.pairs.pair(i)[1];
            match norm {
                Norm::L2 => relative_l2(answer, truth),
                norm => relative_h1(answer, truth, self.pairs.grid, norm == Norm::H1Periodic),
            }
        })
        .collect()
    }
}

impl Row {
    /// What operators answer on the grids of these tests; they are numbered where there are several.
    pub fn operators(models: &[Model], tests: &[Test]) -> Result<Vec<Self>> {
        Self::operators_by(models, tests, |seed, test| values(&seed.answers(&test.pairs)?, "y"))
    }

    /// What they come to by what is done with each.
    pub fn operators_by(models: &[Model], tests: &[Test], by: impl Fn(&Stored, &Test) -> Result<Vec<f32>>) -> Result<Vec<Self>> {
        let row = |(i, model): (usize, &Model)| {
            let of = |test: &Test| model.seeds.iter().map(|seed| by(seed, test)).collect::<Result<_>>();
            let (name, short) = match models.len() {
                1 => (model.name(), "operator".to_owned()),
                _ => (format!("{}: {}", i + 1, model.name()), format!("operator {}", i + 1)),
            };
            Ok(Self { name, short, learnt: true, answers: tests.iter().map(of).collect::<Result<_>>()? })
        };
        models.iter().enumerate().map(row).collect()
    }

    /// What who has not learnt answers to all pairs of a test, `[N, n, m]`.
    pub fn baseline(name: &str, tests: &[Test], of: impl Fn(&Test) -> Result<Vec<f32>>) -> Result<Self> {
        let answers = tests.iter().map(|test| Ok(vec![of(test)?])).collect::<Result<_>>()?;
        Ok(Self { name: name.to_owned(), short: name.to_owned(), learnt: false, answers })
    }

    /// The truth.
    pub fn truth(tests: &[Test]) -> Result<Self> {
        Self::baseline("truth", tests, |test| Ok(test.pairs.answers.clone()))
    }

    /// The mean over pairs of what is measured, by seed.
    pub fn by_seed(&self, (number, test): (usize, &Test), of: impl Fn(&[f32], [&[f32]; 2]) -> Result<f64>) -> Result<Vec<f64>> {
        self.answers[number].iter().map(|answers| test.each(answers, &of).map(|values| mean(&values))).collect()
    }

    /// The mean error, by seed.
    pub fn errors(&self, (number, test): (usize, &Test), norm: Norm) -> Vec<f64> {
        self.answers[number].iter().map(|answers| mean(&test.errors(answers, norm))).collect()
    }
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Every so manieth place, from the first.
pub fn coarser(pairs: &Fields, [down, across]: [usize; 2]) -> Fields {
    let [n, m] = pairs.grid;
    let of = |fields: &[f32]| {
        let kept = fields.iter().enumerate().filter(|(at, _)| at / m % n % down == 0 && at % m % across == 0);
        kept.map(|(_, value)| *value).collect::<Vec<f32>>()
    };
    Fields { grid: [n.div_ceil(down), m.div_ceil(across)], inputs: of(&pairs.inputs), answers: of(&pairs.answers), ..*pairs }
}

/// A table of errors: a row each, for every test its norms.
pub fn errors(tests: &[Test], rows: &[Row], norms: &[Norm]) -> String {
    let name = |norm: &Norm| match norm {
        Norm::L2 => "L2",
        Norm::H1 => "H1",
        Norm::H1Periodic => "H1 around",
    };
    let head = |test: &Test| {
        let names: Vec<&str> = norms.iter().map(name).collect();
        format!("{}: {}", test.grid(), names.join(" | "))
    };
    let heads: Vec<String> = tests.iter().map(head).collect();
    let mut text = format!("\n| | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(tests.len() * norms.len()));
    for row in rows {
        let cell = |numbered, norm: &Norm| of_seeds(&row.errors(numbered, *norm), 4);
        let cells = tests.iter().enumerate().flat_map(|numbered| norms.iter().map(move |norm| cell(numbered, norm)));
        text += &format!("| {} | {} |\n", row.name, cells.collect::<Vec<String>>().join(" | "));
    }
    text
}

/// A table of other measures: for every test a line each, whose cells are given.
pub fn measures(
    tests: &[Test],
    rows: &[Row],
    heads: &[&str],
    cells: impl Fn((usize, &Test), &Row) -> Result<Vec<String>>,
) -> Result<String> {
    let mut text = format!("\n| places | | {} |\n|---|---|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for numbered in tests.iter().enumerate() {
        for row in rows {
            text += &format!("| {} | {} | {} |\n", numbered.1.grid(), row.name, cells(numbered, row)?.join(" | "));
        }
    }
    Ok(format!("{text}\n{PRINTED}\n"))
}

/// The mean spectrum over fields, each of which may be many of that grid.
pub fn spectra(fields: &[f32], grid: [usize; 2]) -> Result<Vec<f64>> {
    let width = grid[0] * grid[1];
    let (mut sum, count) = (Vec::new(), fields.len() / width);
    for field in fields.chunks_exact(width) {
        let energy = spectrum(field, grid)?;
        sum.resize(energy.len(), 0.0);
        sum.iter_mut().zip(energy).for_each(|(sum, energy)| *sum += energy / count as f64);
    }
    Ok(sum)
}

/// Spectra over wave numbers up to the shortest wave along an axis: the truth's and an operator's first seed's, for every test.
pub fn spectrum_chart(tests: &[Test], row: &Row, grid: impl Fn(&Test) -> [usize; 2]) -> Result<String> {
    let mut lines = Vec::new();
    for (number, test) in tests.iter().enumerate() {
        let line = |name: &str, dashed: bool, fields: &[f32]| {
            let energy = spectra(fields, grid(test))?.into_iter().take(grid(test)[1] / 2 + 1);
            let points = energy.enumerate().map(|(k, energy)| (k as f64, energy.max(LEAST).log10())).collect();
            Ok::<_, candle_models::Error>(Line { name: format!("{name}, {}", test.grid()), dashed, points })
        };
        lines.push(line("operator", false, &row.answers[number][0])?);
        lines.push(line("truth", true, &test.pairs.answers)?);
    }
    let most = lines.iter().flat_map(|line| &line.points).fold(1.0, |most: f64, point| most.max(point.0));
    chart(&Axes { across: (0.0..most, "wave number"), up: (around(&lines), "log10 of the energy".to_owned()) }, &lines)
}

/// Whole numbers around the values of lines.
pub fn around(lines: &[Line]) -> std::ops::Range<f64> {
    let values = || lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let (low, high) = (values().fold(f64::INFINITY, f64::min).floor(), values().fold(f64::NEG_INFINITY, f64::max).ceil());
    low..high.max(low + 1.0)
}

/// A chart from 0 upwards.
pub fn from_zero(across: (std::ops::Range<f64>, &'static str), up: &str, lines: &[Line]) -> Result<String> {
    let most = lines.iter().flat_map(|line| &line.points).fold(1e-6, |most: f64, point| most.max(point.1));
    chart(&Axes { across, up: (0.0..1.05 * most, up.to_owned()) }, lines)
}

/// Mean errors by resolution: those of rows on sources of pairs, of which each has its tests.
pub fn by_resolution(sources: &[(&str, &[Test], &[Row])]) -> Result<String> {
    let mut lines = Vec::new();
    for (source, tests, rows) in sources {
        for row in *rows {
            let points =
                tests.iter().enumerate().map(|(i, test)| (test.pairs.grid[1] as f64, mean(&row.errors((i, test), Norm::L2)))).collect();
            lines.push(Line { name: format!("{}, {source}", row.short), dashed: !row.learnt, points });
        }
    }
    let places = || lines.iter().flat_map(|line| &line.points).map(|point| point.0);
    let (low, high) = (places().fold(f64::INFINITY, f64::min), places().fold(f64::NEG_INFINITY, f64::max));
    from_zero((low..high.max(low + 1.0), "places a side"), "mean relative error (L2)", &lines)
}

/// Input, truth, answer and error of the best, the median and the worst answer of an operator's seed. The input has the colours of the answer where both are
/// `shared`, states of one field.
pub fn pictures(test: &Test, answers: &[f32], shared: bool) -> String {
    let errors = test.errors(answers, Norm::L2);
    let mut order: Vec<usize> = (0..errors.len()).collect();
    order.sort_by(|a, b| errors[*a].total_cmp(&errors[*b]));
    let width = test.pairs.widths()[1];
    let chosen = [("best", 0), ("median", order.len() / 2), ("worst", order.len() - 1)].map(|(name, at)| (name, order[at]));
    let differences = chosen.map(|(_, i)| {
        let pairs = answers[i * width..][..width].iter().zip(test.pairs.pair(i)[1]);
        pairs.map(|(answer, truth)| answer - truth).collect::<Vec<f32>>()
    });
    let rows: Vec<Maps> = chosen
        .iter()
        .zip(&differences)
        .map(|((name, i), difference)| {
            let ([input, truth], answer) = (test.pairs.pair(*i), &answers[i * width..][..width]);
            let values = range(&[if shared { input } else { truth }, truth, answer], Colours::Value);
            let map = |name, values, range| Map { name, values, range, colours: Colours::Value };
            let error =
                Map { name: "error", values: difference, range: range(&[difference], Colours::Difference), colours: Colours::Difference };
            Maps {
                caption: format!("{name} of {}: pair {i}, relative L2 {:.4}", errors.len(), errors[*i]),
                maps: vec![
                    map("input", input, if shared { values } else { range(&[input], Colours::Value) }),
                    map("truth", truth, values),
                    map("answer", answer, values),
                    error,
                ],
            }
        })
        .collect();
    picture(test.pairs.grid, &rows)
}
