//! Radio networks: bundles and what their signatures say are measured as others are; signals and features have a suite of their own.

mod suite;

use crate::family::BenchFamily;
use crate::readme::{self, Table};
use crate::run::{Chapter, Entry};
use crate::suite::Suite;
use candle_models::rf::RfFamily;

impl BenchFamily for RfFamily {
    fn shipped(&self) -> &'static [&'static str] {
        &["weights/localiser", "weights/classifier"]
    }

    fn suites(&self) -> Vec<Entry> {
        vec![Entry::of::<suite::RfBench>(Chapter::Operations)]
    }

    fn tables(&self) -> Vec<Table> {
        vec![Table { name: "rf", suite: suite::RfBench::NAME, rows: readme::any, layout: readme::by_threads }]
    }
}
