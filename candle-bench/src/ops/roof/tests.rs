use super::threads::Sum;
use super::*;
use crate::formulas::Refused;
use pulp::Arch;

const CPU: [usize; 2] = [LEAST_BYTES, PEAK_COPY];

fn quick() -> Settings {
    Settings { warm_up_s: 0.0, window_s: 1e-3, ..Settings::default() }
}

#[test]
fn bytes_are_held_against_as_many_or_a_little_fewer() {
    assert_eq!(Probe::of_bytes(46e6, CPU), Probe::Bytes(10 << 22));
    assert_eq!(Probe::of_bytes(46.2e6, CPU), Probe::Bytes(11 << 22));
    assert_eq!(Probe::of_bytes(10.0, CPU), Probe::Bytes(LEAST_BYTES));
    assert_eq!(Probe::of_bytes(1e12, CPU), Probe::Bytes(PEAK_COPY));
}

#[test]
fn a_row_above_its_roofs_is_refused_after_they_were_measured_anew() {
    let (pool, settings) = (pool(1).unwrap(), quick());
    let mut machine = Machine::new(Site::Threads(&pool), &settings);
    // A product that something else had run beside: measured anew, it is as fast as it is.
    machine.found.insert(Probe::Product("f32".to_owned()), 1e-6);
    let work = Work { flop: 1e9, bytes: 1e6 };
    // A day is time enough for either, and not for a roof of a thousand operations a second.
    let day_us = 8.64e10;
    let demand = Demand::of(work, "f32");
    let roofs = machine.over(&demand, day_us).unwrap();
    assert!(roofs.gflop_per_s > 1e-5 && roofs.gb_per_s > 0.0, "{roofs:?}");
    // More than any machine reaches.
    let error = machine.over(&demand, 1e-3).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(Refused::AboveRoof { .. })), "{error:?}");
}

/// Half of the operations outside of products that are three times as fast: half of the time and a sixth.
#[test]
fn what_is_outside_of_products_has_the_roof_of_f32() {
    let (pool, settings) = (pool(1).unwrap(), quick());
    let mut machine = Machine::new(Site::Threads(&pool), &settings);
    machine.found.extend([("f32", 10.0), ("bf16", 30.0)].map(|(dtype, rate)| (Probe::Product(dtype.to_owned()), rate)));
    let work = Work { flop: 1e9, bytes: 1e6 };
    let rate = |machine: &mut Machine, outside| {
        let demand = Demand { outside, ..Demand::of(work, "bf16") };
        machine.over(&demand, 1e9).unwrap().gflop_per_s
    };
    assert_eq!(rate(&mut machine, 0.0), 30.0);
    assert!((rate(&mut machine, 5e8) - 15.0).abs() < 1e-9);
}

#[test]
fn every_kind_of_roof_is_measured() {
    let pool = pool(1).unwrap();
    for weights in Weights::ALL {
        let found = product_gflop_per_s(&pool, weights, 64, &quick()).unwrap();
        assert!(found.is_finite() && found > 0.0, "{weights:?}: {found}");
    }
    let registers = fastest_product(&pool, Weights::F32, &quick()).unwrap();
    assert!(registers.is_finite() && registers > 0.0, "{registers}");
    let values = &floats(1 << 12).unwrap()[3..];
    assert!((Arch::new().dispatch(Sum(values)) - values.iter().sum::<f32>()).abs() < 1e-2);
}
