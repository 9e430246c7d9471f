//! Pages of operators that have learnt a little.

use super::*;
use crate::families::fno::config::RunConfig;
use crate::families::fno::run::Plan;
use crate::families::fno::source::{Equation, Source};
use crate::plan::{TrainingPlan, TrainingResult};
use crate::run::Place;
use crate::stop::Stop;
use crate::trainer::Resources;
use candle_core::{Device, Tensor};
use candle_models::tensors::NamedTensors;
use std::collections::HashMap;
use std::fs;

/// A small operator, trained for some steps.
fn train(out: &Path, preset: &str, seed: u64) {
    let states: &[&str] = if preset == "ns" { &["data.equation.states=2", "data.count=8"] } else { &[] };
    let sets = [
        "data.count=24",
        "data.equation.places=8",
        "held_out=4",
        "batch=4",
        "epochs=4",
        "model.hidden=6",
        "model.layers=1",
        "model.modes=[4,4]",
        &format!("seed={seed}"),
    ]
    .into_iter()
    .chain(states.iter().copied())
    .map(str::to_owned)
    .collect::<Vec<_>>();
    let config = RunConfig::resolve(&RunConfig::preset(preset).unwrap(), None, &sets).unwrap();
    let plan = Plan::new(config, &[], &[], Resources::default(), "candle-train operator".to_owned()).unwrap();
    plan.train(&Place::memory(), &Stop::after(None)).unwrap().save(out).unwrap();
}

/// A file of pairs `[N, n, n]`, or of states over time where x is `[N, m]`.
fn write(path: &Path, fields: &Fields, times: bool) {
    let ([n, m], count) = (fields.grid, fields.len());
    let beginnings: Vec<f32> = fields.inputs.chunks_exact(n * m).flat_map(|x| x[..if times { m } else { n * m }].to_vec()).collect();
    let shape = if times { vec![count, m] } else { vec![count, n, m] };
    let x = Tensor::from_vec(beginnings, shape, &Device::Cpu).unwrap();
    let y = Tensor::from_slice(&fields.answers, (count, n, m), &Device::Cpu).unwrap();
    candle_core::safetensors::save(&HashMap::from([("x", x), ("y", y)]), path).unwrap();
    NamedTensors::load_safetensors(path).unwrap();
}

fn arguments(root: &Path) -> PageArguments {
    let darcy = |seed: u64| root.join(format!("darcy-{seed}"));
    PageArguments {
        darcy: vec![darcy(1), darcy(2)],
        burgers: vec![root.join("burgers")],
        flows: vec![root.join("flows")],
        data: Some(root.to_owned()),
        darcy_tests: vec!["darcy_test_8.safetensors".into(), "darcy_test_16.safetensors".into()],
        darcy_train: "darcy_train.safetensors".into(),
        burgers_tests: vec!["burgers_test.safetensors".into()],
        made: 2,
        places: 16,
        out: root.join("page"),
        threads: None,
    }
}

#[test]
fn the_page_shows_operators_beside_solvers_and_what_the_equations_say() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    [1, 2].iter().for_each(|seed| train(&root.join(format!("darcy-{seed}")), "darcy", *seed));
    train(&root.join("burgers"), "burgers", 1);
    train(&root.join("flows"), "ns", 1);
    let made = |count: u64, equation: Equation| Source { seed: 5, count, equation }.all().unwrap();
    let fine = made(6, Equation::Darcy { places: 16 });
    let coarse = measure::coarser(&fine, [2, 2]);
    assert_eq!((coarse.grid, coarse.len()), ([8, 8], 6));
    write(&root.join("darcy_test_16.safetensors"), &fine, false);
    write(&root.join("darcy_test_8.safetensors"), &coarse, false);
    write(&root.join("darcy_train.safetensors"), &coarse, false);
    write(&root.join("burgers_test.safetensors"), &made(5, Equation::Burgers { places: 8 }), true);

    arguments(root).write().unwrap();
    let text = fs::read_to_string(root.join("page/README.md")).unwrap();
    let part = |heading: &str| text.split(heading).nth(1).unwrap_or_else(|| panic!("no '{heading}' in {text}"));
    let row = |part: &str, name: &str| -> Vec<f64> {
        let line = part.lines().find(|line| line.contains(name) && line.starts_with('|'));
        let line = line.unwrap_or_else(|| panic!("no row '{name}' in {part}"));
        line.split('|').filter(|cell| !cell.contains(" x ")).filter_map(|cell| cell.split_whitespace().next()?.parse().ok()).collect()
    };
    let darcy = part("## Darcy flow");
    // Three norms on two grids; who knows the equation is nearer than who has learnt for a second.
    let (operator, solver) = (row(darcy, "** (2 seeds"), row(darcy, "finite volumes"));
    assert_eq!((operator.len(), solver.len()), (6, 6), "{text}");
    assert!(solver.iter().zip(&operator).all(|(solver, operator)| solver < operator), "{text}");
    // The mean is that of the same fields: no constant answer is nearer, on the grid that it was learnt on.
    assert!(row(darcy, "mean of darcy_train")[0] < 0.7, "{text}");
    assert!(row(darcy, "TFNO")[0] == 0.0975 && darcy.contains("(0."), "{text}");
    // Residual, over the truth's, edge, energy: the truth is itself, and the solution has no residual.
    let physics = part("### What the equation says of the answers");
    assert_eq!(row(physics, "| truth |")[1..], [1.0, 0.0, 0.0], "{text}");
    assert!(row(physics, "| truth |")[0] > 0.1 && row(physics, "finite volumes")[0] == 0.0, "{text}");
    assert!(row(physics, "** (2 seeds")[2] > 0.0, "{text}");
    let burgers = part("## Burgers' equation");
    let (solver, persistence) = (row(burgers, "solver from the given places"), row(burgers, "persistence"));
    assert!(solver[0] < persistence[0] && persistence[0] > 0.1, "{text}");
    let physics = burgers.split("### What").nth(1).unwrap();
    // Nothing that stays as it is has a mean that changes.
    assert_eq!(row(physics, "persistence")[2], 0.0, "{text}");
    assert!(row(physics, "| truth |")[2] < 0.05 && row(physics, "(one seed")[2] > 0.0, "{text}");
    let flows = part("## Flows");
    // An answer, then roll-outs.
    let (rolled, errors) = (flows.split("### Rolled out").nth(1).unwrap(), flows);
    assert!(row(errors, "**")[0] > 0.0 && row(errors, "persistence")[0] > 0.0, "{text}");
    // Of the beginnings, which hardly have a mean on few places, after every so many answers.
    let unmoved = row(rolled, "persistence");
    assert!(unmoved[0] < unmoved[3] && unmoved[5] < 0.05, "{text}");
    assert!(row(rolled, "**")[5] > unmoved[5], "{text}");
    for name in [
        "darcy-resolution.svg",
        "darcy-spectrum.svg",
        "darcy_test_8.svg",
        "darcy_test_16.svg",
        "burgers-times.svg",
        "burgers-resolution.svg",
        "burgers-spectrum.svg",
        "burgers_test.svg",
        "flows-times.svg",
        "flows.svg",
    ] {
        let svg = fs::read_to_string(root.join("page").join(name)).unwrap();
        assert!(svg.starts_with("<svg") && svg.len() < 100_000 && text.contains(&format!("({name})")), "{name}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
    }
    // Every table and figure says where it comes from.
    assert_eq!(text.matches("Printed by `").count(), 8 + 10, "{text}");
    assert!(!text.contains("NaN"), "{text}");
}

#[test]
fn what_cannot_be_measured_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let error = |arguments: &PageArguments| arguments.write().unwrap_err().to_string();
    let missing = arguments(root);
    assert!(error(&missing).contains("darcy-1"), "{}", error(&missing));
    train(&root.join("darcy-1"), "darcy", 1);
    let one = PageArguments { darcy: vec![root.join("darcy-1")], burgers: Vec::new(), flows: Vec::new(), ..arguments(root) };
    assert!(error(&one).contains("darcy_test_8.safetensors"), "{}", error(&one));
    let fields = Fields { grid: [2, 3], channels: [1, 1], states: 1, inputs: vec![0.0; 12], answers: vec![0.0; 12] };
    for name in ["darcy_test_8.safetensors", "darcy_test_16.safetensors", "darcy_train.safetensors"] {
        write(&root.join(name), &fields, false);
    }
    assert_eq!(error(&one), "config: --darcy-tests: darcy_test_8: expected fields on a square, found 2 x 3");
    assert!(!root.join("page").exists());
    // Nothing is shipped where the tests run.
    let none = PageArguments { darcy: Vec::new(), burgers: Vec::new(), flows: Vec::new(), ..arguments(root) };
    let shipped = DARCY.iter().chain(BURGERS).chain(FLOWS).any(|path| Path::new(path).exists());
    assert!(shipped || error(&none).contains("expected bundles of neural operators, found none"));
    assert!(places("64").is_ok() && ["18", "12", "a", "260"].iter().all(|text| places(text).is_err()));
}
