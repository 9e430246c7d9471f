//! Burgers' equation: errors by resolution and by time, what the equation says of answers, pictures.

use super::measure::{Model, Row, Test, by_resolution, coarser, errors, from_zero, mean, measures, pictures, spectra, spectrum_chart};
use super::{PRINTED, SEED};
use crate::families::fno::loss::Norm;
use crate::families::fno::source::{Equation as Made, Source};
use crate::report::figure::Line;
use crate::report::sections::{Section, of_seeds};
use candle_models::fno::burgers::Burgers as Equation;
use candle_models::fno::metrics::relative_l2;
use candle_models::fno::physics::{burgers_residual, mean_drift, spectrum_error};
use candle_models::{Error, Result};
use rayon::prelude::*;

/// What is measured of operators for Burgers' equation.
pub struct Burgers {
    pub models: Vec<Model>,
    pub tests: Vec<Test>,
}

impl Burgers {
    /// Refuses pairs that are not of this equation.
    ///
    /// # Errors
    /// That names the option and the file.
    pub fn check(self) -> Result<Self> {
        for test in &self.tests {
            equation(test).validate().map_err(|error| Error::config("--burgers-tests", format!("{}: {error}", test.name)))?;
        }
        Ok(self)
    }

    /// The tables and figures. `made` are how many pairs are made, and their places.
    ///
    /// # Errors
    /// If a network or a solver fails.
    pub fn section(&self, (count, places): (u64, usize), say: &dyn Fn(&str)) -> Result<Section> {
        let norms = [Norm::L2, Norm::H1];
        say("Burgers' equation");
        let rows = self.rows(&self.tests)?;
        let most = self.models.iter().map(Model::most).max().unwrap_or(0);
        let truth = &self.tests[0].pairs.answers;
        let size = mean(&truth.iter().map(|u| f64::from(*u).powi(2)).collect::<Vec<_>>()).sqrt();
        let mut section = Section {
            text: format!(
                "\n## Burgers' equation\n\nA state at the beginning to the states at times from 0 to 1: `u_t + u u_x = {} u_xx` on a periodic line. Pairs: {}; places are times x places. The solver continues the \
                 waves through the places of the beginning: what it misses are waves that these places do not show. Persistence says that nothing changes.\n",
                Equation::default().viscosity,
                self.tests
                    .iter()
                    .map(|test| format!("{} of {} ({})", test.pairs.len(), test.name, test.grid()))
                    .collect::<Vec<_>>()
                    .join(", "),
            ),
            ..Section::default()
        };
        section.text += &errors(&self.tests, &rows, &norms);
        section.text += &format!("\n{PRINTED}\n");
        section.show(
            "burgers-times.svg".to_owned(),
            (&format!("Error by time, {}.", self.tests[0].name), PRINTED),
            by_time(&self.tests[0], &rows)?,
        );

        say("Burgers' equation, made");
        let finest = Source { seed: SEED, count, equation: Made::Burgers { places } }.all()?;
        let made: Vec<Test> = [4, 2, 1].map(|stride| Test { name: "made".to_owned(), pairs: coarser(&finest, [1, stride]) }).into();
        let made_rows = self.rows(&made)?;
        section.text += &format!("\n{count} states that were made, read at every fourth, at every second and at all of {places} places.\n");
        section.text += &errors(&made, &made_rows, &norms);
        section.text += &format!("\n{PRINTED}\n");
        let operators = self.models.len();
        section.show(
            "burgers-resolution.svg".to_owned(),
            ("Error by resolution.", PRINTED),
            by_resolution(&[("files", &self.tests, &rows[..operators]), ("made", &made, &made_rows[..=operators])])?,
        );

        say("Burgers' equation, physics");
        section.text += &format!(
            "\n### What the equation says of the answers\n\nThe residual is by how much `u_t + u u_x - nu u_xx` misses 0, the root of its mean square; the truth's is that of coarse times. The mean of `u` does \
             not change: the greatest difference from the beginning's, of any pair at any time (states have a root mean square of {size:.3}). Energy by wave number, \
             `E(k) = 1/2 sum |u_k|^2`, of all states together: the greatest difference from the truth's for k from 1 to {most}, the shortest wave that an operator computes with.\n"
        );
        let judged = [vec![Row::truth(&self.tests)?], rows].concat();
        let line = |test: &Test| [1, test.pairs.grid[1]];
        section.text += &measures(
            &self.tests,
            &judged,
            &["residual", "over the truth's", "drift of the mean", "energy off by, %"],
            |numbered, row| {
                let test = numbered.1;
                let of = |answer: &[f32], _: [&[f32]; 2]| burgers_residual(&equation(test), answer);
                let residuals = row.by_seed(numbered, of)?;
                let least = mean(&test.each(&test.pairs.answers, of)?);
                let truth = spectra(&test.pairs.answers, line(test))?;
                let (mut drifts, mut energy) = (Vec::new(), Vec::new());
                for answers in &row.answers[numbered.0] {
                    let all = test.each(answers, |answer, [input, _]| Ok(mean_drift(&input[..test.pairs.grid[1]], answer)))?;
                    drifts.push(all.into_iter().fold(0.0, f64::max));
                    energy.push(100.0 * spectrum_error(&spectra(answers, line(test))?, &truth, most));
                }
                let over: Vec<f64> = residuals.iter().map(|residual| residual / least).collect();
                Ok(vec![of_seeds(&residuals, 3), of_seeds(&over, 3), of_seeds(&drifts, 5), of_seeds(&energy, 2)])
            },
        )?;
        let first = &judged[1];
        section.show(
            "burgers-spectrum.svg".to_owned(),
            ("Energy by wave number: the first seed, and the truth.", PRINTED),
            spectrum_chart(&self.tests, first, line)?,
        );
        for (number, test) in self.tests.iter().enumerate() {
            let says = format!(
                "{}, {}: the beginning, the states (times down), the answer of the first seed, and its error. Below them: the values of the first and the last colour.",
                test.name,
                test.grid()
            );
            section.show(format!("{}.svg", test.name), (&says, PRINTED), pictures(test, &first.answers[number][0], true));
        }
        Ok(section)
    }

    /// Operators, the solver from the places of the beginning, persistence.
    fn rows(&self, tests: &[Test]) -> Result<Vec<Row>> {
        let mut rows = Row::operators(&self.models, tests)?;
        rows.push(Row::baseline("solver from the given places", tests, |test| {
            let (solver, [x, y]) = (equation(test).solver()?, test.pairs.widths());
            let mut states = vec![0.0; test.pairs.answers.len()];
            let pairs = test.pairs.inputs.par_chunks(x).zip(states.par_chunks_mut(y));
            pairs.try_for_each(|(input, states)| {
                let beginning: Vec<f64> = input[..test.pairs.grid[1]].iter().map(|u| f64::from(*u)).collect();
                solver.continue_from(&beginning, states)
            })?;
            Ok(states)
        })?);
        rows.push(Row::baseline("persistence", tests, |test| Ok(test.pairs.inputs.clone()))?);
        Ok(rows)
    }
}

/// The equation on a test's grid.
fn equation(test: &Test) -> Equation {
    let [times, places] = test.pairs.grid;
    Equation { times, places, ..Equation::default() }
}

/// Mean errors of the states at every time.
fn by_time(test: &Test, rows: &[Row]) -> Result<String> {
    let [times, places] = test.pairs.grid;
    let line = |row: &Row| {
        let at = |time: usize| {
            let state = |field: &[f32]| field[time * places..][..places].to_vec();
            let errors = row.by_seed((0, test), |answer, [_, truth]| Ok(relative_l2(&state(answer), &state(truth))))?;
            Ok((time as f64, mean(&errors)))
        };
        Ok::<_, Error>(Line { name: row.short.clone(), dashed: !row.learnt, points: (0..times).map(at).collect::<Result<_>>()? })
    };
    let lines = rows.iter().map(line).collect::<Result<Vec<Line>>>()?;
    from_zero((0.0..(times - 1) as f64, "number of the state, the last at time 1"), "mean relative error (L2)", &lines)
}
