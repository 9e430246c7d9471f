//! The step of the game policy of candle-models, read from a bundle (config.json, model.safetensors), in the operations of a [`Library`]: those
//! that it offers, each the fastest that was found there. Backbones `mlp` and `mamba`, both kinds of heads. The embedding tables are
//! multiplied into the first layer, as candle-models does, so that a comparison measures the libraries and not the algebra. Actions are
//! drawn by inverting the cumulative distribution at `uniform`; the greedy choice (negative `uniform`) is left out.
//!
//! Shapes: B rows, E inner width, N states, K taps.

use crate::Step;
use crate::layout::{self, Named, Values};
use crate::protocol::{Case, Unavailable};
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;

const FEATURES: usize = 288;
const ACTION_STATE_IDS: usize = 4;
const CHARACTER_IDS: usize = 2;
/// Means "choose".
pub const SAMPLE: u32 = u32::MAX;
pub const EPS: f64 = 1e-5;
/// Key, first of the action's columns, columns, classes of a column.
const COMPONENTS: [(&str, usize, usize, usize); 6] =
    [("buttons", 0, 8, 2), ("main_x", 8, 1, 17), ("main_y", 9, 1, 17), ("c_x", 10, 1, 17), ("c_y", 11, 1, 17), ("shoulder", 12, 1, 5)];
const INDEPENDENT_WIDTHS: [usize; 6] = [64, 64, 64, 64, 64, 32];

/// A library's operations on vectors `V`, matrices `X` and states `S` `[B, ., .]` of floats and on matrices `I` of indices.
pub trait Library {
    type V;
    type X: Clone;
    type S;
    type I: Clone;
    /// A layer's weight and bias, as the library likes them.
    type Layer;

    fn vector(&self, values: &[f32]) -> Result<Self::V>;
    fn matrix(&self, values: &[f32], shape: [usize; 2]) -> Result<Self::X>;
    fn zeros(&self, shape: [usize; 3]) -> Result<Self::S>;
    fn indices(&self, values: &[u32], shape: [usize; 2]) -> Result<Self::I>;
    fn read(&self, x: &Self::X) -> Result<Vec<f32>>;
    fn read_indices(&self, x: &Self::I) -> Result<Vec<u32>>;

    /// From a weight `[in, out]`.
    fn layer(&self, weight: &[f32], shape: [usize; 2], bias: Option<&[f32]>) -> Result<Self::Layer>;
    fn linear(&self, x: &Self::X, layer: &Self::Layer) -> Result<Self::X>;
    fn layer_norm(&self, x: &Self::X, norm: &Affine<Self::V, Self::V>) -> Result<Self::X>;
    fn rms_norm(&self, x: &Self::X, weight: &Self::V) -> Result<Self::X>;
    fn gelu(&self, x: &Self::X) -> Result<Self::X>;
    fn relu(&self, x: &Self::X) -> Result<Self::X>;
    fn silu(&self, x: &Self::X) -> Result<Self::X>;
    fn softplus(&self, x: &Self::X) -> Result<Self::X>;
    fn add(&self, a: &Self::X, b: &Self::X) -> Result<Self::X>;
    fn mul(&self, a: &Self::X, b: &Self::X) -> Result<Self::X>;
    fn columns(&self, x: &Self::X, columns: Range<usize>) -> Result<Self::X>;
    fn index_columns(&self, x: &Self::I, columns: Range<usize>) -> Result<Self::I>;
    fn join(&self, parts: Vec<Self::X>) -> Result<Self::X>;
    fn join_indices(&self, parts: Vec<Self::I>) -> Result<Self::I>;
    /// Each row plus `by` `[1, n]`.
    fn shift(&self, x: &Self::I, by: &Self::I) -> Result<Self::I>;
    /// The sum of the table's rows that a row of `ids` `[B, n]` names.
    fn look_up(&self, table: &Self::X, ids: &Self::I) -> Result<Self::X>;
    /// Yes or no for every logit, by its probability at `uniform`.
    fn decide(&self, logits: &Self::X, uniform: &Self::X) -> Result<Self::I>;
    /// One class of a row's logits, `[B, 1]`, by the cumulative distribution at `uniform` `[B, 1]`.
    fn draw(&self, logits: &Self::X, uniform: &Self::X) -> Result<Self::I>;
    /// `picked` where `wanted` is [`SAMPLE`], else `wanted`.
    fn or_wanted(&self, picked: Self::I, wanted: &Self::I) -> Result<Self::I>;
    /// The window `[B, K - 1, E]` with `u` `[B, E]` behind it by the taps `[K, E]`, `[B, E]`, and the window behind that.
    fn convolve(&self, window: &Self::S, u: &Self::X, taps: &Affine<Self::X, Self::V>) -> Result<(Self::X, Self::S)>;
    /// `h = exp(dt a) h + dt u b` `[B, E, N]`, and `y = h c + d u` `[B, E]`; `a` is the weight `[E, N]`, `d` the bias `[E]`.
    fn scan(&self, h: &Self::S, u: &Self::X, selected: Selection<Self::X>, fixed: &Affine<Self::X, Self::V>) -> Result<(Self::X, Self::S)>;
}

/// A factor and what is added.
pub struct Affine<W, B> {
    pub weight: W,
    pub bias: B,
}

/// What a selective scan takes from its input: `dt` `[B, E]`, `b` and `c` `[B, N]`.
pub struct Selection<X> {
    pub dt: X,
    pub b: X,
    pub c: X,
}

#[derive(Deserialize)]
struct Config {
    family: String,
    model: serde_json::Value,
}

#[derive(Deserialize)]
struct Architecture {
    backbone: serde_json::Value,
    heads: String,
    embedding: usize,
    #[serde(default)]
    prior: bool,
}

/// A Mamba block.
struct Block<L: Library> {
    norm: L::V,
    in_proj: L::Layer,
    taps: Affine<L::X, L::V>,
    x_proj: L::Layer,
    dt_proj: L::Layer,
    fixed: Affine<L::X, L::V>,
    out_proj: L::Layer,
    inner: usize,
    /// Columns of `x_proj` for `dt`, `b` and `c`.
    selection: [Range<usize>; 3],
}

enum Backbone<L: Library> {
    Mlp(Vec<(L::Layer, Affine<L::V, L::V>)>),
    Mamba(Vec<Block<L>>, L::V),
}

/// A component of the action.
struct Head<L: Library> {
    /// In front of the logits, with its table of the last action; none where the heads are independent.
    hidden: Option<(L::Layer, L::X)>,
    out: L::Layer,
    /// Rows for what was chosen, for the heads behind.
    chosen: Option<L::X>,
    /// The first table row of each column.
    first_rows: L::I,
}

/// The policy of a bundle, and its calls.
pub struct Streaming<L: Library> {
    library: L,
    observation: L::Layer,
    folded: L::X,
    first_rows: L::I,
    input_norm: Affine<L::V, L::V>,
    backbone: Backbone<L>,
    /// Of all heads.
    stream: L::Layer,
    heads: Vec<Head<L>>,
    value: [L::Layer; 2],
    frames: Vec<Frame<L>>,
    next: usize,
    /// Window and scan of each block.
    state: Vec<(L::S, L::S)>,
    found: Option<(L::X, L::X, L::I)>,
}

struct Frame<L: Library> {
    features: L::X,
    ids: L::I,
    previous: L::I,
    wanted: L::I,
    uniform: L::X,
}

/// A bundle's parameters, handed to a library.
struct Parameters<'a, L> {
    library: &'a L,
    tensors: BTreeMap<String, Named>,
}

impl<L: Library> Parameters<'_, L> {
    fn named(&self, name: &str) -> Result<(&[f32], &[usize])> {
        let tensor = self.tensors.get(name).with_context(|| format!("no parameter {name}"))?;
        Ok((tensor.floats()?, &tensor.shape))
    }

    fn matrix(&self, name: &str) -> Result<(&[f32], [usize; 2])> {
        let (values, shape) = self.named(name)?;
        Ok((values, shape.try_into().with_context(|| format!("{name} is {shape:?}, expected a matrix"))?))
    }

    fn vector(&self, name: &str) -> Result<L::V> {
        self.library.vector(self.named(name)?.0)
    }

    fn table(&self, name: &str) -> Result<L::X> {
        let (values, shape) = self.matrix(name)?;
        self.library.matrix(values, shape)
    }

    fn layer(&self, name: &str) -> Result<L::Layer> {
        let (weight, shape) = self.matrix(&format!("{name}.weight"))?;
        let bias = self.named(&format!("{name}.bias")).ok().map(|(values, _)| values);
        self.library.layer(weight, shape, bias)
    }

    fn norm(&self, name: &str) -> Result<Affine<L::V, L::V>> {
        Ok(Affine { weight: self.vector(&format!("{name}.weight"))?, bias: self.vector(&format!("{name}.bias"))? })
    }

    /// One table for all id columns, already multiplied by its share of the first layer, and the first row of each column.
    fn folded(&self, width: usize) -> Result<(L::X, L::I)> {
        let (weight, [_, outputs]) = self.matrix("input.weight")?;
        let columns = [("action_states", ACTION_STATE_IDS), ("characters", CHARACTER_IDS)];
        let names = columns.iter().flat_map(|(name, count)| std::iter::repeat_n(*name, *count));
        let (mut rows, mut first_rows) = (Vec::new(), Vec::new());
        for (column, name) in names.enumerate() {
            first_rows.push((rows.len() / outputs) as u32);
            let share = &weight[(FEATURES + column * width) * outputs..][..width * outputs];
            for entry in self.named(name)?.0.chunks(width) {
                let mut row = vec![0.0; outputs];
                for (x, weights) in entry.iter().zip(share.chunks(outputs)) {
                    row.iter_mut().zip(weights).for_each(|(y, w)| *y += x * w);
                }
                rows.extend(row);
            }
        }
        let (entries, columns) = (rows.len() / outputs, first_rows.len());
        Ok((self.library.matrix(&rows, [entries, outputs])?, self.library.indices(&first_rows, [1, columns])?))
    }

    fn block(&self, name: &str) -> Result<Block<L>> {
        let of = |part: &str| format!("{name}.{part}");
        let (_, [rank, inner]) = self.matrix(&of("dt_proj.weight"))?;
        let (a_log, shape @ [_, states]) = self.matrix(&of("a_log"))?;
        let a: Vec<f32> = a_log.iter().map(|x| -x.exp()).collect();
        Ok(Block {
            norm: self.vector(&of("norm.weight"))?,
            in_proj: self.layer(&of("in_proj"))?,
            taps: Affine { weight: self.table(&of("conv.weight"))?, bias: self.vector(&of("conv.bias"))? },
            x_proj: self.layer(&of("x_proj"))?,
            dt_proj: self.layer(&of("dt_proj"))?,
            fixed: Affine { weight: self.library.matrix(&a, shape)?, bias: self.vector(&of("d"))? },
            out_proj: self.layer(&of("out_proj"))?,
            inner,
            selection: [0..rank, rank..rank + states, rank + states..rank + 2 * states],
        })
    }

    fn backbone(&self, config: &serde_json::Value) -> Result<Backbone<L>> {
        let blocks = |count: usize| (0..count).map(|i| format!("blocks.{i}"));
        match config["kind"].as_str().unwrap_or_default() {
            "mlp" => {
                let layers = config["layers"].as_array().map_or(0, Vec::len);
                let block = |name: String| Ok((self.layer(&format!("{name}.linear"))?, self.norm(&format!("{name}.norm"))?));
                // The first layer reads the observation.
                Ok(Backbone::Mlp(blocks(layers.saturating_sub(1)).map(block).collect::<Result<_>>()?))
            }
            "mamba" => {
                let layers = config["layers"].as_u64().unwrap_or_default() as usize;
                let blocks = blocks(layers).map(|name| self.block(&name)).collect::<Result<_>>()?;
                Ok(Backbone::Mamba(blocks, self.vector("norm.weight")?))
            }
            kind => Err(Unavailable(format!("the peers have no backbone {kind}, only mlp and mamba")).into()),
        }
    }

    fn head(&self, (key, _, columns, classes): (&str, usize, usize, usize), autoregressive: bool) -> Result<Head<L>> {
        let of = |part: &str| format!("heads.{key}.{part}");
        let first_rows: Vec<u32> = (0..columns as u32).map(|i| i * classes as u32).collect();
        let first_rows = self.library.indices(&first_rows, [1, columns])?;
        if !autoregressive {
            return Ok(Head { hidden: None, out: self.layer(&format!("heads.{key}"))?, chosen: None, first_rows });
        }
        Ok(Head {
            hidden: Some((self.layer(&of("hidden"))?, self.table(&of("previous"))?)),
            out: self.layer(&of("out"))?,
            chosen: self.table(&of("chosen")).ok(),
            first_rows,
        })
    }
}

impl<L: Library> Streaming<L> {
    pub fn new(library: L, case: &Case) -> Result<Self> {
        let file = case.bundle.join("config.json");
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let Config { family, model } = serde_json::from_str(&text)?;
        if family != "policy" {
            return Err(Unavailable(format!("{} has no step of a {family} here", case.library)).into());
        }
        let Architecture { backbone, heads, embedding, prior } = serde_json::from_value(model)?;
        if prior {
            return Err(Unavailable(format!("{} has no step of a policy over count tables here (model.prior)", case.library)).into());
        }
        let p = Parameters { library: &library, tensors: layout::read(&case.bundle.join("model.safetensors"))? };
        let (weight, [_, outputs]) = p.matrix("input.weight")?;
        let observation = library.layer(&weight[..FEATURES * outputs], [FEATURES, outputs], Some(p.named("input.bias")?.0))?;
        let (folded, first_rows) = p.folded(embedding)?;
        let backbone = p.backbone(&backbone)?;
        let mut state = Vec::new();
        if let Backbone::Mamba(blocks, _) = &backbone {
            for (i, block) in blocks.iter().enumerate() {
                let ([taps, _], states) = (p.matrix(&format!("blocks.{i}.conv.weight"))?.1, block.selection[1].len());
                state.push((library.zeros([case.batch, taps - 1, block.inner])?, library.zeros([case.batch, block.inner, states])?));
            }
        }
        let autoregressive = heads == "autoregressive";
        let stream = p.layer(if autoregressive { "heads.stream" } else { "heads.hidden" })?;
        let heads = COMPONENTS.iter().map(|component| p.head(*component, autoregressive)).collect::<Result<_>>()?;
        let (input_norm, value) = (p.norm("input_norm")?, [p.layer("value.0")?, p.layer("value.1")?]);
        let frames = layout::inputs(case)?.iter().map(|inputs| Frame::new(&library, inputs)).collect::<Result<_>>()?;
        drop(p);
        let found = None;
        Ok(Self { library, observation, folded, first_rows, input_norm, backbone, stream, heads, value, frames, next: 0, state, found })
    }

    fn layer_norm_gelu(&self, x: &L::X, norm: &Affine<L::V, L::V>) -> Result<L::X> {
        self.library.gelu(&self.library.layer_norm(x, norm)?)
    }

    /// `x` behind a block, and its state.
    fn block(&self, x: &L::X, (window, h): &(L::S, L::S), block: &Block<L>) -> Result<(L::X, (L::S, L::S))> {
        let l = &self.library;
        let both = l.linear(&l.rms_norm(x, &block.norm)?, &block.in_proj)?;
        let (u, z) = (l.columns(&both, 0..block.inner)?, l.columns(&both, block.inner..2 * block.inner)?);
        let (u, window) = l.convolve(window, &u, &block.taps)?;
        let u = l.silu(&u)?;
        let selected = l.linear(&u, &block.x_proj)?;
        let [low, b, c] = block.selection.clone();
        let dt = l.softplus(&l.linear(&l.columns(&selected, low)?, &block.dt_proj)?)?;
        let selection = Selection { dt, b: l.columns(&selected, b)?, c: l.columns(&selected, c)? };
        let (y, h) = l.scan(h, &u, selection, &block.fixed)?;
        let y = l.linear(&l.mul(&y, &l.silu(&z)?)?, &block.out_proj)?;
        Ok((l.add(x, &y)?, (window, h)))
    }

    fn trunk(&mut self, frame: usize) -> Result<L::X> {
        let (l, frame) = (&self.library, &self.frames[frame]);
        let rows = l.look_up(&self.folded, &l.shift(&frame.ids, &self.first_rows)?)?;
        let x = l.add(&l.linear(&frame.features, &self.observation)?, &rows)?;
        let mut x = self.layer_norm_gelu(&x, &self.input_norm)?;
        match &self.backbone {
            Backbone::Mlp(blocks) => {
                for (layer, norm) in blocks {
                    x = self.layer_norm_gelu(&l.linear(&x, layer)?, norm)?;
                }
                Ok(x)
            }
            Backbone::Mamba(blocks, norm) => {
                let mut after = Vec::with_capacity(blocks.len());
                for (block, state) in blocks.iter().zip(&self.state) {
                    let (y, state) = self.block(&x, state, block)?;
                    x = y;
                    after.push(state);
                }
                let x = l.rms_norm(&x, norm)?;
                self.state = after;
                Ok(x)
            }
        }
    }

    fn heads(&self, trunk: &L::X, frame: &Frame<L>) -> Result<(L::X, L::I)> {
        let l = &self.library;
        let (mut all, mut chosen, mut at) = (Vec::new(), Vec::new(), 0);
        let mut stream = l.linear(trunk, &self.stream)?;
        if self.heads[0].hidden.is_none() {
            stream = l.relu(&stream)?;
        }
        for ((head, (_, start, columns, classes)), width) in self.heads.iter().zip(COMPONENTS).zip(INDEPENDENT_WIDTHS) {
            let own = start..start + columns;
            let logits = match &head.hidden {
                Some((hidden, previous)) => {
                    let ids = l.shift(&l.index_columns(&frame.previous, own.clone())?, &head.first_rows)?;
                    let h = l.add(&l.linear(&stream, hidden)?, &l.look_up(previous, &ids)?)?;
                    l.linear(&l.relu(&h)?, &head.out)?
                }
                None => l.linear(&l.columns(&stream, at..at + width)?, &head.out)?,
            };
            at += width;
            let uniform = l.columns(&frame.uniform, own.clone())?;
            let picked = if classes == 2 { l.decide(&logits, &uniform)? } else { l.draw(&logits, &uniform)? };
            let picked = l.or_wanted(picked, &l.index_columns(&frame.wanted, own)?)?;
            if let Some(table) = &head.chosen {
                stream = l.add(&stream, &l.look_up(table, &l.shift(&picked, &head.first_rows)?)?)?;
            }
            all.push(logits);
            chosen.push(picked);
        }
        Ok((l.join(all)?, l.join_indices(chosen)?))
    }
}

impl<L: Library> Frame<L> {
    fn new(library: &L, inputs: &BTreeMap<String, Named>) -> Result<Self> {
        let named = |name: &str| inputs.get(name).with_context(|| format!("no input {name}"));
        let floats = |name: &str| named(name).and_then(|x| library.matrix(x.floats()?, [x.shape[0], x.shape[1]]));
        let indices = |name: &str| named(name).and_then(|x| library.indices(x.indices()?, [x.shape[0], x.shape[1]]));
        Ok(Self {
            features: floats("features")?,
            ids: indices("ids")?,
            previous: indices("previous_action")?,
            wanted: indices("action")?,
            uniform: floats("uniform")?,
        })
    }
}

impl<L: Library> Step for Streaming<L> {
    fn frames(&self) -> usize {
        self.frames.len()
    }

    fn call(&mut self) -> Result<()> {
        let frame = self.next;
        self.next = (frame + 1) % self.frames.len();
        let trunk = self.trunk(frame)?;
        let l = &self.library;
        let value = l.linear(&l.relu(&l.linear(&trunk, &self.value[0])?)?, &self.value[1])?;
        let (logits, action) = self.heads(&trunk, &self.frames[frame])?;
        self.found = Some((logits, value, action));
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(String, Values)>> {
        let (logits, value, action) = self.found.as_ref().context("no call yet")?;
        Ok(vec![
            ("logits".to_owned(), Values::Floats(self.library.read(logits)?)),
            ("value".to_owned(), Values::Floats(self.library.read(value)?)),
            ("action".to_owned(), Values::Indices(self.library.read_indices(action)?)),
        ])
    }
}
