//! Neural operators: bundles and what their signatures say are measured as others are.

use crate::family::BenchFamily;
use candle_models::fno::FnoFamily;

impl BenchFamily for FnoFamily {}
