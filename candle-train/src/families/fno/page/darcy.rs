//! Darcy flow: errors by resolution, what finite volumes say of answers, pictures.

use super::measure::{Model, Row, Test, by_resolution, coarser, errors, mean, measures, pictures, spectra, spectrum_chart};
use super::{PRINTED, SEED};
use crate::families::fno::loss::Norm;
use crate::families::fno::source::{Equation as Made, Source};
use crate::report::sections::{Section, of_seeds};
use candle_models::fno::darcy::Darcy as Equation;
use candle_models::fno::physics::{darcy_edge, darcy_residual, darcy_solution, spectrum_error};
use candle_models::{Error, Result};
use rayon::prelude::*;

/// Figures that others published.
struct Published {
    name: &'static str,
    /// By the name of the test file: L2, and H1 around where it is known.
    figures: [(&'static str, f64, Option<f64>); 2],
}

const PUBLISHED: [Published; 2] = [
    Published {
        name: "TFNO of 523 257 parameters, modes 16, epoch 18 of 20 ([documentation of neuraloperator](https://github.com/neuraloperator/neuraloperator/blob/gh-pages/dev/_sources/auto_examples/plot_FNO_darcy.rst.txt))",
        figures: [("darcy_test_16", 0.0975, Some(0.1389)), ("darcy_test_32", 0.1386, Some(0.2948))],
    },
    Published {
        name: "UNO of 2.67 million parameters (documentation of neuraloperator)",
        figures: [("darcy_test_16", 0.1388, None), ("darcy_test_32", 0.5684, None)],
    },
];

/// What is measured of operators for Darcy flow.
pub struct Darcy {
    pub models: Vec<Model>,
    pub tests: Vec<Test>,
    /// Pairs that were learnt from.
    pub train: Test,
}

impl Darcy {
    /// Refuses pairs that are not of this equation.
    ///
    /// # Errors
    /// That names the option and the file.
    pub fn check(self) -> Result<Self> {
        for (option, test) in self.tests.iter().map(|test| ("--darcy-tests", test)).chain([("--darcy-train", &self.train)]) {
            let [n, m] = test.pairs.grid;
            if n != m {
                return Err(Error::config(option, format!("{}: expected fields on a square, found {}", test.name, test.grid())));
            }
            equation(test).validate().map_err(|error| Error::config(option, format!("{}: {error}", test.name)))?;
        }
        Ok(self)
    }

    /// The tables and figures. `made` are how many pairs are made, and their places a side.
    ///
    /// # Errors
    /// If a network or a solver fails.
    pub fn section(&self, (count, places): (u64, usize), say: &dyn Fn(&str)) -> Result<Section> {
        let norms = [Norm::L2, Norm::H1, Norm::H1Periodic];
        say("Darcy flow");
        let operators = Row::operators(&self.models, &self.tests)?;
        let (solver, average) = (finite_volumes(&self.tests)?, self.mean_field(&self.tests)?);
        let most = self.models.iter().map(Model::most).max().unwrap_or(0);
        let mut section = Section {
            text: format!(
                "\n## Darcy flow\n\nA medium on the unit square, of conductivity 1 or 19, to the pressure in it: `-div(a grad u) = 1`, `u = 0` on the edge, as multiples of 1/49. Pairs: {}. Finite volumes solve the equation on the very medium that the operator reads; they too do not know where between two places a wall \
                 is. \"H1 around\" takes slopes across the edges, as neuraloperator does by default.\n",
                self.tests
                    .iter()
                    .map(|test| format!("{} of {} ({})", test.pairs.len(), test.name, test.grid()))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            ..Section::default()
        };
        let shown = [operators, vec![solver, average]].concat();
        section.text += &errors(&self.tests, &shown, &norms);
        section.text += &published(&self.tests);
        section.text += &format!("\n{PRINTED}\n");

        say("Darcy flow, made");
        let finest = Source { seed: SEED, count, equation: Made::Darcy { places } }.all()?;
        let made: Vec<Test> = [4, 2, 1].map(|stride| Test { name: "made".to_owned(), pairs: coarser(&finest, [stride; 2]) }).into();
        let made_rows = [Row::operators(&self.models, &made)?, vec![finite_volumes(&made)?, self.mean_field(&made)?]].concat();
        section.text += &format!(
            "\n{count} media that were made, and their flows (solved on {} x {} places), read at every fourth, at every second and at all of {places} x {places} places: the same fields on three \
             grids, and a distribution that is near to that of the files, not the same.\n",
            4 * places,
            4 * places
        );
        section.text += &errors(&made, &made_rows, &norms[..2]);
        section.text += &format!("\n{PRINTED}\n");
        // The operators and, behind them, finite volumes.
        let compared = self.models.len() + 1;
        let lines = [("files", &self.tests[..], &shown[..compared]), ("made", &made[..], &made_rows[..compared])];
        section.show(
            "darcy-resolution.svg".to_owned(),
            ("Error by resolution, beside finite volumes on the same grid.", PRINTED),
            by_resolution(&lines)?,
        );

        say("Darcy flow, physics");
        section.text += &format!(
            "\n### What the equation says of the answers\n\nThe residual is by how much `-div(a grad u)` misses 1 in the finite volumes of that grid, the root of its mean square. The truth has one too: it \
             is the flow through a medium that is finer than the grid. On the edges at 0, which lie on the grid, `u` should be 0: the greatest there over the greatest anywhere. Energy by wave \
             number, `E(k) = 1/2 sum |u_k|^2`, of all fields together: the greatest difference from the truth's for k from 1 to {most}, the shortest wave that an operator computes with.\n"
        );
        let judged = [&[Row::truth(&self.tests)?], &shown[..compared]].concat();
        section.text +=
            &measures(&self.tests, &judged, &["residual", "over the truth's", "on the edge, %", "energy off by, %"], |numbered, row| {
                let test = numbered.1;
                let of = |answer: &[f32], [medium, _]: [&[f32]; 2]| darcy_residual(&equation(test), medium, answer);
                let residuals = row.by_seed(numbered, of)?;
                let least = mean(&test.each(&test.pairs.answers, of)?);
                let edges = row.by_seed(numbered, |answer, _| Ok(100.0 * darcy_edge(answer, test.pairs.grid[0])))?;
                let truth = spectra(&test.pairs.answers, test.pairs.grid)?;
                let energy = row.answers[numbered.0]
                    .iter()
                    .map(|answers| Ok(100.0 * spectrum_error(&spectra(answers, test.pairs.grid)?, &truth, most)))
                    .collect::<Result<Vec<f64>>>()?;
                let over: Vec<f64> = residuals.iter().map(|residual| residual / least).collect();
                Ok(vec![of_seeds(&residuals, 3), of_seeds(&over, 3), of_seeds(&edges, 2), of_seeds(&energy, 2)])
            })?;
        // The first operator's row, behind the truth's.
        let first = &judged[1];
        section.show(
            "darcy-spectrum.svg".to_owned(),
            ("Energy by wave number: the first seed, and the truth.", PRINTED),
            spectrum_chart(&self.tests, first, |test| test.pairs.grid)?,
        );
        for (number, test) in self.tests.iter().enumerate() {
            let says = format!(
                "{}, {}: medium, pressure, the answer of the first seed, and its error. Below them: the values of the first and the last colour.",
                test.name,
                test.grid()
            );
            section.show(format!("{}.svg", test.name), (&says, PRINTED), pictures(test, &first.answers[number][0], false));
        }
        Ok(section)
    }

    /// The mean of what was learnt from, between its places linear, 0 at the edges at 1.
    fn mean_field(&self, tests: &[Test]) -> Result<Row> {
        let (side, pairs) = (self.train.pairs.grid[0], &self.train.pairs);
        let mut field = vec![0.0; side * side];
        let count = pairs.len() as f64;
        for flow in pairs.answers.chunks_exact(side * side) {
            field.iter_mut().zip(flow).for_each(|(sum, u)| *sum += f64::from(*u) / count);
        }
        let at = |i: usize, j: usize| if i >= side || j >= side { 0.0 } else { field[i * side + j] };
        Row::baseline(&format!("mean of {}", self.train.name), tests, |test| {
            let n = test.pairs.grid[0];
            let value = |place: usize| {
                let [(i, down), (j, across)] = [place / n, place % n].map(|i| (i * side / n, (i * side % n) as f64 / n as f64));
                let row = |i: usize| at(i, j) * (1.0 - across) + at(i, j + 1) * across;
                (row(i) * (1.0 - down) + row(i + 1) * down) as f32
            };
            Ok((0..n * n).map(value).collect::<Vec<f32>>().repeat(test.pairs.len()))
        })
    }
}

/// The equation on a test's grid.
fn equation(test: &Test) -> Equation {
    Equation { places: test.pairs.grid[0], ..Equation::default() }
}

/// The classical solution on each medium as it is given.
fn finite_volumes(tests: &[Test]) -> Result<Row> {
    Row::baseline("finite volumes on the given medium", tests, |test| {
        let media = test.pairs.inputs.par_chunks(test.pairs.widths()[0]);
        Ok(media.map(|medium| darcy_solution(&equation(test), medium)).collect::<Result<Vec<_>>>()?.concat())
    })
}

/// The figures of others, of the tests that they measured by.
fn published(tests: &[Test]) -> String {
    let mut text = String::new();
    for Published { name, figures } in PUBLISHED {
        let of = |test: &Test| figures.iter().find(|figure| figure.0 == test.name);
        if tests.iter().any(|test| of(test).is_some()) {
            let cells = tests.iter().map(|test| match of(test) {
                Some((_, l2, h1)) => format!("{l2:.4} | | {}", h1.map_or_else(String::new, |h1| format!("{h1:.4}"))),
                None => " | |".to_owned(),
            });
            text += &format!("| {name} | {} |\n", cells.collect::<Vec<_>>().join(" | "));
        }
    }
    text
}
