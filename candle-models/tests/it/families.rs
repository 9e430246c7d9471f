//! What holds for every network of every shipped family, over the examples that the families give.

use crate::family_names::assert_known_in_their_folders_only;
use candle_core::{DType, Device, Tensor};
use candle_models::bundle::{self, Bundle, CONFIG, Manifest, Role, Storage};
use candle_models::engine::{Engine, Model, Options, Runner};
use candle_models::exec::SAMPLE;
use candle_models::exec::graph::{Definition, Evaluated, Tables};
use candle_models::families;
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::registry::{Family, Networks, Registry};
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Parameters for which no pass over a network has a gradient: those that belong to a family and to none of its networks, which the family's own
/// tests differentiate in what uses them, and those that training leaves as they are.
const BESIDE: [(&str, &[&str]); 2] = [
    ("beam", &["first", "codebook"]),
    (
        "policy",
        &["heads.buttons.prior", "heads.main_x.prior", "heads.main_y.prior", "heads.c_x.prior", "heads.c_y.prior", "heads.shoulder.prior"],
    ),
];

/// An example of a family with parameters of its own.
pub struct Example {
    family: &'static dyn Family,
    /// For messages.
    label: String,
    pub bundle: Bundle,
    params: Params,
    pub networks: Networks,
    _directory: TempDir,
}

impl Example {
    fn new(family: &'static dyn Family, number: usize, manifest: &Manifest) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(CONFIG), serde_json::to_vec(manifest).unwrap()).unwrap();
        let bundle = Bundle::open(directory.path()).unwrap();
        let params = Params::init(Random::new(7), &Device::Cpu);
        family.networks(&bundle, &params).unwrap();
        // What starts as zero is moved, so that nothing hides behind it.
        let tensors = params.vars().into_iter().map(|(name, var)| {
            if flat(&var).iter().all(|x| *x == 0.0) {
                let mut noise = vec![0.0; var.elem_count()];
                Random::new(8).stream(&name).fill_normal(0, &mut noise);
                var.set(&Tensor::from_vec(noise, var.shape(), &Device::Cpu).unwrap().affine(0.3, 0.0).unwrap()).unwrap();
            }
            (name, var.as_tensor().clone())
        });
        let networks = family.networks(&bundle, &Params::given(tensors.collect(), &Device::Cpu)).unwrap();
        let label = format!("{} {number} ({})", family.name(), family.describe(&bundle).unwrap());
        Self { family, label, bundle, params, networks, _directory: directory }
    }

    pub fn all() -> Vec<Self> {
        let of = |family: &'static dyn Family| {
            let manifests = family.examples().unwrap();
            assert!(!manifests.is_empty(), "{} has no examples", family.name());
            manifests.iter().enumerate().map(|(i, manifest)| Self::new(family, i, manifest)).collect::<Vec<_>>()
        };
        families::shipped().iter().flat_map(of).collect()
    }

    /// Its networks with labels.
    pub fn labelled(&self) -> impl Iterator<Item = (String, &std::sync::Arc<dyn Model>)> {
        self.networks.iter().map(|(name, model)| (format!("{} {name}", self.label), model))
    }

    fn tensors(&self) -> BTreeMap<String, Tensor> {
        self.params.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor())).collect()
    }

    /// The whole bundle, below the example's directory.
    pub fn save(&self, name: &str) -> Bundle {
        let dir = self.bundle.dir().join(name);
        bundle::save(&dir, self.bundle.manifest(), &self.tensors(), Value::Null, &[]).unwrap();
        Bundle::open(dir).unwrap()
    }
}

/// Random inputs `[batch, steps, ...]`. Choices are given, or with `sampled` left to the model where it can choose.
pub fn inputs(model: &dyn Model, (batch, steps): (usize, usize), sampled: bool) -> NamedTensors {
    let values = |spec: &TensorSpec| {
        let drawn = spec.draw(&[batch, steps], &Random::new(5)).unwrap();
        if sampled && spec.can_sample() { Tensor::full(SAMPLE, drawn.dims(), &Device::Cpu).unwrap() } else { drawn }
    };
    model.signature().inputs.iter().map(|spec| (spec.name.clone(), values(spec))).collect()
}

pub fn resets(batch: usize, steps: usize) -> Vec<bool> {
    (0..batch * steps).map(|i| Random::new(11).stream("resets").uniform(i as u64) < 0.15).collect()
}

/// Those of frame t.
fn resets_at(resets: &[bool], (batch, steps): (usize, usize), t: usize) -> Vec<bool> {
    (0..batch).map(|b| resets[b * steps + t]).collect()
}

fn frame(values: &NamedTensors, t: usize) -> NamedTensors {
    values.map(|_, x| Ok(x.narrow(1, t, 1)?.squeeze(1)?.contiguous()?)).unwrap()
}

pub fn flat(x: &Tensor) -> Vec<f32> {
    x.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

pub fn assert_close(what: &str, found: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(found.len(), want.len(), "{what}");
    for (i, (x, y)) in found.iter().zip(want).enumerate() {
        assert!((x - y).abs() <= tolerance * (1.0 + x.abs().max(y.abs())), "{what} at {i}: {x} and {y}");
    }
}

/// Everything in `found` is in `want`, and as close as that.
fn assert_all_close(what: &str, found: &NamedTensors, want: &NamedTensors, tolerance: f32) {
    assert_eq!(found.len(), want.len(), "{what}");
    found.iter().for_each(|(name, x)| assert_close(&format!("{what} {name}"), &flat(x), &flat(want.get(name).unwrap()), tolerance));
}

#[test]
fn a_step_in_standard_operators_answers_like_the_model() {
    let (size @ (batch, steps), mut differ) = ((3, 9), 0);
    for example in &Example::all() {
        let bundle = example.save("graphs");
        let [graphs, folded] = [Tables::AsStored, Tables::Folded].map(|tables| families::shipped().graphs(&bundle, tables).unwrap());
        for (((what, model), (_, graph)), (_, folded)) in example.labelled().zip(graphs).zip(folded) {
            for (graph, sampled) in [(&graph, false), (&graph, true), (&folded, true)] {
                let written = Evaluated::new(graph.clone(), &**model);
                let (inputs, resets) = (inputs(&**model, size, sampled), resets(batch, steps));
                let start = model.initial_state(batch).unwrap();
                let (found, _) = written.unroll(&inputs, &resets, &start).unwrap();
                let (want, _) = model.unroll(&inputs, &resets, &start).unwrap();
                assert_all_close(&what, &found, &want, 2e-5);
            }
            // What stands under no name is small: whoever reads the bundle has the rest.
            for (_, definition) in graph.definitions() {
                assert!(!matches!(definition, Definition::Constant(x) if x.elem_count() > 64), "{what}: {definition:?}");
            }
            differ += usize::from(folded.definitions().count() != graph.definitions().count());
        }
    }
    assert!(differ > 0, "no example has tables to fold");
}

#[test]
fn unroll_equals_folded_steps_for_random_resets() {
    let size @ (batch, steps) = (3, 11);
    for example in &Example::all() {
        for ((what, model), sampled) in example.labelled().flat_map(|network| [(network.clone(), false), (network, true)]) {
            let (inputs, resets) = (inputs(&**model, size, sampled), resets(batch, steps));
            let start = model.initial_state(batch).unwrap();
            let (whole, after) = model.unroll(&inputs, &resets, &start).unwrap();
            let mut state = start;
            for t in 0..steps {
                let (outputs, next) = model.step(&frame(&inputs, t), &resets_at(&resets, size, t), &state).unwrap();
                assert_all_close(&format!("{what} frame {t}"), &outputs, &frame(&whole, t), 2e-5);
                state = next;
            }
            assert_all_close(&format!("{what} state"), &state, &after, 2e-5);
        }
    }
}

#[test]
fn a_row_of_a_batch_is_the_row_alone() {
    let (batch, steps) = (4, 6);
    for example in &Example::all() {
        for (what, model) in example.labelled() {
            let (inputs, resets) = (inputs(&**model, (batch, steps), true), resets(batch, steps));
            let (all, after) = model.unroll(&inputs, &resets, &model.initial_state(batch).unwrap()).unwrap();
            for row in 0..batch {
                let own = |values: &NamedTensors| values.gather_rows(&[row as u32]).unwrap();
                let resets = &resets[row * steps..][..steps];
                let (alone, state) = model.unroll(&own(&inputs), resets, &model.initial_state(1).unwrap()).unwrap();
                assert_all_close(&format!("{what} row {row}"), &alone, &own(&all), 2e-5);
                assert_all_close(&format!("{what} state of row {row}"), &state, &own(&after), 2e-5);
            }
        }
    }
}

fn fill(runner: &mut Runner, inputs: &NamedTensors) {
    for (name, x) in inputs.iter() {
        match x.dtype() {
            DType::U32 => runner.set_u32(name, &x.flatten_all().unwrap().to_vec1().unwrap()).unwrap(),
            _ => runner.set_f32(name, &flat(x)).unwrap(),
        }
    }
}

/// The outputs of a row of a runner are those of tensors, indices to the last one.
fn assert_row(what: &str, runner: &Runner, row: usize, want: impl Fn(&str) -> Tensor) {
    for spec in &runner.signature().outputs {
        let want = want(&spec.name);
        match spec.dtype() {
            DType::U32 => assert_eq!(runner.indices(&spec.name, row).unwrap(), want.to_vec1::<u32>().unwrap(), "{what} {}", spec.name),
            _ => assert_close(&format!("{what} {}", spec.name), runner.floats(&spec.name, row).unwrap(), &flat(&want), 3e-5),
        }
    }
}

#[test]
fn slices_equal_tensors_streaming_and_in_a_window() {
    let size @ (batch, steps) = (3, 11);
    for example in &Example::all() {
        for (what, model) in example.labelled() {
            let (inputs, resets) = (inputs(&**model, size, true), resets(batch, steps));
            let (want, _) = model.unroll(&inputs, &resets, &model.initial_state(batch).unwrap()).unwrap();
            for threads in [1, 2] {
                let mut window = Runner::windowed(model.clone(), batch, steps, threads).unwrap();
                fill(&mut window, &inputs);
                window.step(&resets).unwrap();
                let mut stream = Runner::new(model.clone(), batch, threads).unwrap();
                for t in 0..steps {
                    fill(&mut stream, &frame(&inputs, t));
                    stream.step(&resets_at(&resets, size, t)).unwrap();
                    for b in 0..batch {
                        let what = format!("{what}, {threads} threads, row {b} frame {t}");
                        let want = |name: &str| want.get(name).unwrap().get(b).unwrap().get(t).unwrap();
                        assert_row(&format!("{what} of a window"), &window, b * steps + t, want);
                        assert_row(&format!("{what} of a stream"), &stream, b, want);
                    }
                }
            }
        }
    }
}

#[test]
fn a_session_of_an_engine_equals_tensors() {
    let size @ (_, steps) = (1, 9);
    for example in &Example::all() {
        for (what, model) in example.labelled() {
            let (inputs, resets) = (inputs(&**model, size, false), resets(1, steps));
            let (want, _) = model.unroll(&inputs, &resets, &model.initial_state(1).unwrap()).unwrap();
            let engine = Engine::start(model.clone(), &Options { sessions: 1, ..Options::default() }).unwrap();
            let mut session = engine.open().unwrap();
            for (t, reset) in resets.into_iter().enumerate() {
                if reset {
                    session.reset();
                }
                for (name, x) in frame(&inputs, t).iter() {
                    match x.dtype() {
                        DType::U32 => session.set_u32(name, &x.flatten_all().unwrap().to_vec1().unwrap()).unwrap(),
                        _ => session.set_f32(name, &flat(x)).unwrap(),
                    }
                }
                session.step().unwrap();
                for (name, want) in frame(&want, t).iter() {
                    let what = format!("{what} {name} frame {t}");
                    match want.dtype() {
                        DType::U32 => {
                            assert_eq!(session.indices(name).unwrap(), want.flatten_all().unwrap().to_vec1::<u32>().unwrap(), "{what}");
                        }
                        _ => assert_close(&what, session.floats(name).unwrap(), &flat(want), 3e-5),
                    }
                }
            }
        }
    }
}

#[test]
fn every_variable_has_a_finite_gradient_that_is_not_zero() {
    let size @ (batch, steps) = (3, 7);
    for example in &Example::all() {
        // An output of a norm has a constant sum of squares: the outputs are weighted by random numbers instead.
        let mut loss = Tensor::zeros((), DType::F32, &Device::Cpu).unwrap();
        for (what, model) in example.labelled() {
            let (inputs, state) = (inputs(&**model, size, false), model.initial_state(batch).unwrap());
            let (outputs, _) = model.unroll(&inputs, &resets(batch, steps), &state).unwrap();
            for (name, y) in outputs.iter().filter(|(_, y)| y.dtype() == DType::F32) {
                let mut weights = vec![0.0; y.elem_count()];
                Random::new(9).stream(&what).stream(name).fill_normal(0, &mut weights);
                let weights = Tensor::from_vec(weights, y.shape(), &Device::Cpu).unwrap();
                loss = (loss + (y * weights).unwrap().sum_all().unwrap()).unwrap();
            }
        }
        let gradients = loss.backward().unwrap();
        let beside = BESIDE.iter().find(|(family, _)| *family == example.family.name()).map_or(&[][..], |(_, names)| names);
        for (name, var) in example.params.vars() {
            let what = format!("{}: {name}", example.label);
            let Some(gradient) = gradients.get(&var) else {
                assert!(beside.contains(&name.as_str()), "{what} has no gradient");
                continue;
            };
            assert!(!beside.contains(&name.as_str()), "{what} has a gradient after all");
            let size: f32 = flat(gradient).iter().map(|g| g.abs()).sum();
            assert!(size.is_finite() && size > 0.0, "{what} has a gradient of {size}");
        }
    }
}

/// Bundles are read by names, shapes and dtypes: a change of any makes what is stored unreadable, and changes what programs feed.
#[test]
fn names_shapes_and_dtypes_are_those_of_the_snapshot() {
    let mut found = String::new();
    for example in &Example::all() {
        writeln!(found, "# {}", example.label).unwrap();
        for spec in example.family.parameters(&example.bundle).unwrap() {
            let role = if spec.role == Role::Matrix { " matrix" } else { "" };
            writeln!(found, "parameter {} {:?}{role}", spec.name, spec.shape).unwrap();
        }
        for (name, model) in &example.networks {
            let signature = model.signature();
            for (kind, specs) in [("input", &signature.inputs), ("output", &signature.outputs), ("state", &signature.state)] {
                specs.iter().for_each(|s| writeln!(found, "{name} {kind} {} {:?} {:?}", s.name, s.dtype(), s.shape).unwrap());
            }
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/families.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, &found).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    let differs = stored.lines().zip(found.lines()).position(|(a, b)| a != b);
    let line = differs.unwrap_or(stored.lines().count().min(found.lines().count()));
    assert!(
        stored == found,
        "tests/golden/families.txt, line {}: stored {:?}, found {:?}\nIf stored bundles can no longer be read, raise the bundle's format \
         version. Then run: UPDATE_SNAPSHOTS=1 cargo test -p candle-models --test it of_the_snapshot",
        line + 1,
        stored.lines().nth(line).unwrap_or("the end"),
        found.lines().nth(line).unwrap_or("the end"),
    );
}

#[test]
fn a_bundle_that_was_saved_and_exported_answers_as_the_networks_do() {
    let (size, registry) = ((2, 5), families::shipped());
    for example in &Example::all() {
        let saved = example.save("saved");
        let exported = saved.dir().with_file_name("exported");
        registry.export(&saved, Storage::Float(DType::F32), &exported).unwrap();
        for bundle in [saved, Bundle::open(exported).unwrap()] {
            let networks = registry.networks(&bundle).unwrap();
            assert_eq!(networks.len(), example.networks.len(), "{}", example.label);
            assert_eq!(registry.describe(&bundle).unwrap(), example.family.describe(&example.bundle).unwrap());
            for ((what, model), (name, loaded)) in example.labelled().zip(&networks) {
                assert!(what.ends_with(name) && loaded.family() == example.family.name(), "{what}");
                let (inputs, state) = (inputs(&**model, size, false), model.initial_state(2).unwrap());
                let [want, found] = [model, loaded].map(|model| model.unroll(&inputs, &resets(2, 5), &state).unwrap().0);
                assert_all_close(&what, &found, &want, 0.0);
            }
        }
    }
}

#[test]
fn networks_of_a_bundle_have_names_of_their_own_and_the_first_is_the_one_that_is_loaded() {
    for example in &Example::all() {
        let names: BTreeSet<&str> = example.networks.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), example.networks.len(), "{}", example.label);
        let loaded = families::shipped().load(&example.save("saved")).unwrap();
        assert_eq!(loaded.signature(), example.networks[0].1.signature(), "{}", example.label);
        assert_eq!(loaded.config(), example.bundle.manifest().model, "{}", example.label);
    }
}

#[test]
fn a_family_that_is_not_registered_is_answered_with_those_that_are() {
    let root = tempfile::tempdir().unwrap();
    let manifest = Manifest::new("poker", &serde_json::json!({ "hidden": 3 })).unwrap();
    fs::write(root.path().join(CONFIG), serde_json::to_vec(&manifest).unwrap()).unwrap();
    let bundle = Bundle::open(root.path()).unwrap();
    let expected =
        format!("{}: family: expected one of [policy, beam, agent, muzero, rf, fno], found poker", root.path().join(CONFIG).display());
    let registry = families::shipped();
    assert_eq!(registry.load(&bundle).err().unwrap().to_string(), expected);
    assert_eq!(registry.parameters(&bundle).unwrap_err().to_string(), expected);
    assert_eq!(registry.describe(&bundle).unwrap_err().to_string(), expected);
    assert_eq!(registry.export(&bundle, Storage::Q8, root.path().join("out")).unwrap_err().to_string(), expected);
    // A program may well know fewer.
    let one: Registry<dyn Family> = Registry::new([&candle_models::beam::BeamFamily]);
    let error = one.load(&bundle).err().unwrap().to_string();
    assert!(error.ends_with("expected one of [beam], found poker"), "{error}");
}

/// Where the names of families may stand outside their folders, and why.
const ELSEWHERE: [(&str, &str); 4] = [
    // The name of a header of HTTP.
    (
        "html.rs",
        r#"         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\"#,
    ),
    // The public paths from before there were families.
    ("lib.rs", "pub use families::{agent, beam, fno, muzero, policy, rf};"),
    // The kernels of a closed loop lie with the other kernels, whose launches and tests are internal to `ops::cuda`.
    ("ops/cuda/episode.rs", ""),
    ("ops/cuda/episode.cu", ""),
];

#[test]
fn families_are_known_by_name_in_their_folders_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_known_in_their_folders_only(&source, "families", &["policy", "policies", "beam"], &ELSEWHERE);
}
