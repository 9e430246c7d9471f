//! Where every matrix of a program lies on the device, for a pass of any number of rows.
//!
//! Inputs lie side by side as they come from the host, outputs as they go back; everything else lies in an arena. Parts of a join are
//! written where they will stand. Values are of the executor's dtype, except inputs, outputs and logits, which are f32.

use crate::cuda::{Gpu, Matrix, States};
use crate::exec::program::{IndexSlot, Output, Program, Slot, StatePlace};
use crate::ops::cuda::product::{Operand, copy};
use crate::{Error, Result};
use candle_core::DType;

/// Bytes of a place: that of an f32 or an index, narrow values take half of it.
const PLACE: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Region {
    Input,
    Output,
    Arena,
}

/// A matrix: `at` places a row lie before it in its region, its own rows are `stride` values apart and begin `start` values in.
#[derive(Debug, Clone, Copy)]
struct Home {
    region: Region,
    at: usize,
    stride: usize,
    start: usize,
    wide: bool,
}

/// The homes of all matrices, and the places a row that each region takes.
pub(super) struct Plan {
    buffers: Vec<Home>,
    /// By the number of columns before them.
    indices: Vec<(usize, Home)>,
    pub inputs: usize,
    pub outputs: usize,
    pub arena: usize,
    /// Outputs that have to be copied to their place: what, and the place.
    pub copies: Vec<(Slot, Slot)>,
}

impl Plan {
    /// # Errors
    /// If an output of indices is an input, or stands there twice.
    pub fn new(program: &Program) -> Result<Self> {
        let arena = |at, stride| Home { region: Region::Arena, at, stride, start: 0, wide: false };
        let mut plan = Self {
            buffers: program.buffers.iter().map(|b| arena(b.at, b.width)).collect(),
            indices: Vec::new(),
            inputs: 0,
            outputs: 0,
            arena: program.width,
            copies: Vec::new(),
        };
        plan.place_inputs(program);
        plan.place_outputs(program)?;
        plan.place_joins(program);
        plan.widen(program);
        Ok(plan)
    }

    fn place_inputs(&mut self, program: &Program) {
        for input in &program.inputs {
            let home = |at, stride| Home { region: Region::Input, at, stride, start: 0, wide: true };
            match input {
                Output::Floats(slot) => {
                    self.buffers[slot.buffer] = home(self.inputs, slot.width);
                    self.inputs += slot.width;
                }
                Output::Indices(slot) => {
                    self.indices.push((slot.at, home(self.inputs, slot.columns)));
                    self.inputs += slot.columns;
                }
            }
        }
    }

    /// An output that is a whole buffer of its own is written in its place.
    fn place_outputs(&mut self, program: &Program) -> Result<()> {
        for output in &program.outputs {
            let home = |at, stride| Home { region: Region::Output, at, stride, start: 0, wide: true };
            match output {
                Output::Floats(slot) => {
                    let own = self.whole(program, *slot) && self.buffers[slot.buffer].region == Region::Arena;
                    if own {
                        self.buffers[slot.buffer] = home(self.outputs, slot.width);
                    } else {
                        self.buffers.push(home(self.outputs, slot.width));
                        self.copies.push((*slot, Slot { buffer: self.buffers.len() - 1, start: 0, width: slot.width }));
                    }
                    self.outputs += slot.width;
                }
                Output::Indices(slot) => {
                    if self.indices.iter().any(|(at, _)| *at == slot.at) {
                        let expected = "an output of indices that is chosen by the model once";
                        return Err(Error::tensor(
                            "outputs",
                            expected,
                            format!("{} columns of an input or of another output", slot.columns),
                        ));
                    }
                    self.indices.push((slot.at, home(self.outputs, slot.columns)));
                    self.outputs += slot.columns;
                }
            }
        }
        Ok(())
    }

    /// Parts of a join that is an output are written where they will stand, if they are whole buffers; the last join first, so that joins
    /// of joins work. (Places in the arena are shared over time, those of outputs and of indices are not.)
    fn place_joins(&mut self, program: &Program) {
        for node in program.nodes.iter().rev() {
            let wires = &node.wires;
            for out in &wires.out_ids {
                let (to, mut start) = (self.index_home(out.at, out.columns), 0);
                for part in wires.ids.iter().filter(|_| node.op.joins()) {
                    if !self.indices.iter().any(|(at, _)| *at == part.at) {
                        self.indices.push((part.at, Home { start: to.start + start, ..to }));
                    }
                    start += part.columns;
                }
            }
            for out in wires.out.iter().filter(|_| node.op.joins()) {
                let (to, mut start) = (self.buffers[out.buffer], out.start);
                for part in &wires.x {
                    let once = wires.x.iter().filter(|p| p.buffer == part.buffer).count() == 1;
                    if to.region == Region::Output
                        && once
                        && self.whole(program, *part)
                        && self.buffers[part.buffer].region == Region::Arena
                    {
                        self.buffers[part.buffer] = Home { start: to.start + start, ..to };
                    }
                    start += part.width;
                }
            }
        }
    }

    fn widen(&mut self, program: &Program) {
        for slot in program.nodes.iter().flat_map(|node| node.op.wide(&node.wires)) {
            self.buffers[slot.buffer].wide = true;
        }
    }

    /// Whether a slot is all of its buffer.
    fn whole(&self, program: &Program, slot: Slot) -> bool {
        slot.start == 0 && program.buffers.get(slot.buffer).is_some_and(|b| b.width == slot.width)
    }

    /// The home of an index matrix; one behind the floats of the arena if it has none yet.
    fn index_home(&mut self, at: usize, columns: usize) -> Home {
        if let Some((_, home)) = self.indices.iter().find(|(a, _)| *a == at) {
            return *home;
        }
        let home = Home { region: Region::Arena, at: self.arena, stride: columns, start: 0, wide: true };
        self.arena = home.at + columns;
        self.indices.push((at, home));
        home
    }

    /// A new matrix in the arena, of the executor's dtype.
    pub fn scratch(&mut self, width: usize) -> Slot {
        self.buffers.push(Home { region: Region::Arena, at: self.arena, stride: width, start: 0, wide: false });
        self.arena += width.next_multiple_of(16);
        Slot { buffer: self.buffers.len() - 1, start: 0, width }
    }

    /// Whether two slots are the same memory.
    pub fn same_place(&self, a: Slot, b: Slot) -> bool {
        let place = |s: Slot| {
            let Home { region, at, stride, start, wide } = self.buffers[s.buffer];
            (region, at, stride, start + s.start, wide, s.width)
        };
        place(a) == place(b)
    }

    /// Whether an index matrix is the same memory as columns of another from `start` on.
    pub fn stands_in(&self, part: IndexSlot, whole: IndexSlot, start: usize) -> bool {
        let place = |slot: IndexSlot, start: usize| {
            let home = self.indices.iter().find(|(at, _)| *at == slot.at).map(|(_, home)| home)?;
            Some((home.region, home.at, home.stride, home.start + start))
        };
        place(part, 0) == place(whole, start)
    }

    /// Whether values of a slot are f32 whatever the dtype.
    pub fn is_wide(&self, slot: Slot) -> bool {
        self.buffers[slot.buffer].wide
    }
}

/// A pass over `batch` sequences of `steps` frames, and its addresses. Row `b * steps + t` is frame t of sequence b.
pub struct Pass<'a> {
    /// The device, its stream and its kernels.
    pub gpu: &'a Gpu,
    pub(super) plan: &'a Plan,
    /// Of values between operations.
    pub dtype: DType,
    /// Sequences.
    pub batch: usize,
    /// Frames of each.
    pub steps: usize,
    /// Addresses of the regions, of scratch for products, and of all states.
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) arena: u64,
    pub(crate) product: u64,
    pub(super) states: u64,
    /// Values of all states of a sequence.
    pub(super) state_width: usize,
}

impl Pass<'_> {
    /// All frames.
    pub fn rows(&self) -> usize {
        self.batch * self.steps
    }

    fn at(&self, home: &Home, start: usize, width: usize, size: usize) -> Matrix {
        let base = match home.region {
            Region::Input => self.input,
            Region::Output => self.output,
            Region::Arena => self.arena,
        };
        let data = base + (home.at * self.rows() * PLACE + (home.start + start) * size) as u64;
        Matrix { data, stride: home.stride as u32, width: width as u32 }
    }

    /// A matrix of floats.
    pub(crate) fn operand(&self, slot: Slot) -> Operand {
        let home = &self.plan.buffers[slot.buffer];
        let size = if home.wide { PLACE } else { self.dtype.size_in_bytes() };
        Operand { matrix: self.at(home, slot.start, slot.width, size), wide: home.wide }
    }

    /// A matrix that the plan has as narrow, or that is f32 in a pass of f32.
    pub fn matrix(&self, slot: Slot) -> Matrix {
        self.operand(slot).matrix
    }

    /// Some columns of a matrix of indices.
    pub fn index(&self, slot: IndexSlot, start: usize, columns: usize) -> Matrix {
        let home = self.plan.indices.iter().find(|(at, _)| *at == slot.at).map(|(_, home)| home);
        let Some(home) = home else { unreachable!("an index matrix without a place") };
        self.at(home, start, columns, PLACE)
    }

    /// A state of all sequences.
    pub fn state(&self, StatePlace { at, .. }: StatePlace) -> States {
        States { data: self.states + (PLACE * at) as u64, stride: self.state_width as u64, slots: self.slots() }
    }

    /// Address of the state number of every sequence.
    pub fn slots(&self) -> u64 {
        self.input + (self.plan.inputs * self.rows() * PLACE) as u64
    }

    /// Address of the resets, one byte a row.
    pub fn resets(&self) -> u64 {
        self.slots() + (self.batch * PLACE) as u64
    }

    /// Copies a matrix to another of its width, whatever the dtypes of both.
    pub(crate) fn copy(&self, from: Slot, to: Slot) -> Result<()> {
        // SAFETY: the plan gives every matrix of a pass its rows.
        Ok(unsafe { copy(self.gpu, self.dtype, self.operand(from), self.operand(to), self.rows()) }?)
    }
}

impl Pass<'_> {
    /// Copies an index matrix to columns of another from `start` on.
    pub(crate) fn copy_indices(&self, from: IndexSlot, to: IndexSlot, start: usize) -> Result<()> {
        // The copy moves words of 32 bits as they are.
        let [from, to] = [(from, 0), (to, start)].map(|(slot, at)| Operand { matrix: self.index(slot, at, from.columns), wide: true });
        // SAFETY: the plan gives every matrix of a pass its rows.
        Ok(unsafe { copy(self.gpu, self.dtype, from, to, self.rows()) }?)
    }
}

impl Plan {
    /// Words that come from the host for a pass: inputs, slots, resets.
    pub fn input_words(&self, batch: usize, steps: usize) -> usize {
        self.inputs * batch * steps + batch + (batch * steps).div_ceil(4)
    }
}
