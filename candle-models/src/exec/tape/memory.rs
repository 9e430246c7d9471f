//! The memory of a tape. Matrices that are read again behind the step have memory of their own; the others lend one another theirs, as soon as nobody in
//! the step asks for them any more: what a row needs at once then stays in the cache, and what waits for the backward is small.

use crate::exec::program::{Output, Program, Slot};
use std::ops::{Index, IndexMut, Range};
use std::sync::Arc;

/// A matrix of every step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix {
    pub width: usize,
    /// Whether one operation reads it and reads all of it, so that its gradient is written rather than added to.
    pub read_once: bool,
    /// Whether the values of all steps are read again backwards, and whether the gradients of all steps make a weight's.
    pub keeps_values: bool,
    pub keeps_grads: bool,
    /// When it is in use: inputs from the moment 0 on, the results of operation `i` from `i + 1` on, outputs to the end.
    life: [usize; 2],
}

impl Matrix {
    /// One that operation `i` alone uses.
    pub fn of(width: usize, i: usize) -> Self {
        Self { width, read_once: true, keeps_values: false, keeps_grads: false, life: [i + 1; 2] }
    }

    /// Those of a program, in the order of its buffers.
    pub fn all(program: &Program) -> Vec<Self> {
        let mut matrices: Vec<Self> =
            program.buffers.iter().map(|b| Self { read_once: false, life: [usize::MAX, 0], ..Self::of(b.width, 0) }).collect();
        let mut readers = vec![0; matrices.len()];
        let floats = |output: &Output| match output {
            Output::Floats(slot) => Some(*slot),
            Output::Indices(_) => None,
        };
        let mut used = |slot: Slot, moment: usize| {
            let [first, last] = &mut matrices[slot.buffer].life;
            (*first, *last) = ((*first).min(moment), (*last).max(moment));
        };
        program.inputs.iter().filter_map(floats).for_each(|slot| used(slot, 0));
        program.outputs.iter().filter_map(floats).for_each(|slot| used(slot, program.nodes.len() + 1));
        for (i, node) in program.nodes.iter().enumerate() {
            [&node.wires.x, &node.wires.out, &node.wires.scratch].into_iter().flatten().for_each(|slot| used(*slot, i + 1));
        }
        for slot in program.nodes.iter().flat_map(|node| &node.wires.x) {
            readers[slot.buffer] += 1;
            matrices[slot.buffer].read_once = slot.width == matrices[slot.buffer].width;
        }
        // The caller is a reader of the outputs.
        program.outputs.iter().filter_map(floats).for_each(|slot| readers[slot.buffer] += 2);
        matrices.iter_mut().zip(readers).for_each(|(m, readers)| m.read_once &= readers == 1);
        matrices
    }

    /// The moment from which on, backwards, gradients are added to it: 0 for an input that nothing reads, the last for an output.
    pub fn last_use(&self) -> usize {
        self.life[1]
    }
}

/// Where a matrix lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In memory of its own, all steps one behind the other.
    Kept(usize),
    /// In memory that it shares with others, and each step with the next.
    Shared(usize),
}

impl Place {
    /// Where step `t` of a matrix of that size lies in its part.
    pub fn range(self, t: usize, size: usize) -> Range<usize> {
        match self {
            Self::Kept(_) => t * size..(t + 1) * size,
            Self::Shared(_) => 0..size,
        }
    }
}

/// How the memory of values, or of gradients, is divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Division {
    /// By matrix.
    pub places: Vec<Place>,
    /// Values a row of each part.
    kept: Vec<usize>,
    shared: Vec<usize>,
}

impl Division {
    /// Of matrices, each in use through the moments of its life, from the first to the last.
    fn new(matrices: &[Matrix], keeps: impl Fn(&Matrix) -> bool, life: impl Fn(&Matrix) -> [usize; 2]) -> Self {
        let mut division = Self { places: vec![Place::Kept(0); matrices.len()], kept: Vec::new(), shared: Vec::new() };
        let mut order: Vec<usize> = (0..matrices.len()).collect();
        order.sort_by_key(|i| life(&matrices[*i])[0]);
        // The last moment of each shared part.
        let mut taken: Vec<usize> = Vec::new();
        for i in order {
            let (matrix, [first, last]) = (&matrices[i], life(&matrices[i]));
            if keeps(matrix) {
                division.places[i] = Place::Kept(division.kept.len());
                division.kept.push(matrix.width);
                continue;
            }
            let free = (0..taken.len()).filter(|part| taken[*part] < first);
            // The part that is too large by the least, or else too small by the least.
            let part = free.min_by_key(|part| {
                let width = division.shared[*part];
                (width < matrix.width, width.abs_diff(matrix.width))
            });
            let part = part.unwrap_or_else(|| {
                taken.push(0);
                division.shared.push(0);
                taken.len() - 1
            });
            (taken[part], division.shared[part]) = (last.max(first), division.shared[part].max(matrix.width));
            division.places[i] = Place::Shared(part);
        }
        division
    }
}

/// What lies in a part of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Values,
    Grads,
}

/// How the memory of tapes is divided. Tapes of the same layout can take the place of one another.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    divisions: [Division; 2],
    /// Values a row that the operations work in.
    pub scratch: usize,
    /// Values a row of the gradient that goes from a step to the step before, by operation.
    pub carried: Vec<usize>,
    /// Parameters whose gradients are summed on the way.
    pub summed: usize,
    /// Indices a row.
    pub columns: usize,
}

impl Layout {
    /// Of matrices that so many operations use.
    pub fn new(matrices: &[Matrix], scratch: usize, carried: Vec<usize>, summed: usize, columns: usize) -> Self {
        let end = carried.len() + 1;
        // Backwards, what was used last comes first.
        let backwards = |m: &Matrix| [end - m.life[1].min(end), end - m.life[0].min(end)];
        Self {
            divisions: [
                Division::new(matrices, |m| m.keeps_values, |m| [m.life[0].min(end), m.life[1]]),
                Division::new(matrices, |m| m.keeps_grads, backwards),
            ],
            scratch,
            carried,
            summed,
            columns,
        }
    }
}

impl Index<Of> for Layout {
    type Output = Division;

    fn index(&self, of: Of) -> &Division {
        &self.divisions[of as usize]
    }
}

/// Values and gradients, in parts.
pub(super) struct Memory([Vec<Vec<f32>>; 2]);

impl Memory {
    /// Of the matrices that are kept, through so many steps.
    pub fn kept(layout: &Layout, rows: usize, steps: usize) -> Self {
        Self::of(layout, |division| &division.kept, steps * rows)
    }

    fn of(layout: &Layout, widths: impl Fn(&Division) -> &[usize], rows: usize) -> Self {
        Self(layout.divisions.each_ref().map(|division| widths(division).iter().map(|width| vec![0.0; rows * width]).collect()))
    }
}

impl Index<Of> for Memory {
    type Output = Vec<Vec<f32>>;

    fn index(&self, of: Of) -> &Vec<Vec<f32>> {
        &self.0[of as usize]
    }
}

impl IndexMut<Of> for Memory {
    fn index_mut(&mut self, of: Of) -> &mut Vec<Vec<f32>> {
        &mut self.0[of as usize]
    }
}

/// What a tape needs while it runs, and another one as soon as it waits.
pub(super) struct Workspace {
    layout: Arc<Layout>,
    rows: usize,
    pub memory: Memory,
    pub scratch: Vec<f32>,
}

impl Workspace {
    pub fn new(layout: &Arc<Layout>, rows: usize) -> Self {
        let memory = Memory::of(layout, |division| &division.shared, rows);
        Self { layout: layout.clone(), rows, memory, scratch: vec![0.0; rows * layout.scratch] }
    }

    /// Whether it serves tapes of a layout.
    pub fn fits(&self, layout: &Layout, rows: usize) -> bool {
        self.rows == rows && *self.layout == *layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the lives of matrices, those that are in use at the same time lie apart, and parts are as wide as what lies in them.
    #[test]
    fn only_matrices_that_are_not_in_use_together_share_memory() {
        let random = crate::random::Random::new(3);
        for case in 0..200 {
            let draw = |stream: &str, i: u64, below: usize| random.stream(stream).at(case).bits(i) as usize % below;
            let operations = 1 + draw("operations", 0, 12);
            let matrix = |i: u64| {
                let first = draw("first", i, operations + 2);
                let last = first + draw("last", i, operations + 2 - first);
                let keeps = |what| draw(what, i, 4) == 0;
                let width = 1 + draw("width", i, 9);
                Matrix { keeps_values: keeps("values"), keeps_grads: keeps("grads"), life: [first, last], ..Matrix::of(width, 0) }
            };
            let matrices: Vec<Matrix> = (0..20).map(matrix).collect();
            let layout = Layout::new(&matrices, 0, vec![0; operations], 0, 0);
            for of in [Of::Values, Of::Grads] {
                let Division { places, kept, shared } = &layout[of];
                for (i, (place, matrix)) in places.iter().zip(&matrices).enumerate() {
                    let keeps = if of == Of::Values { matrix.keeps_values } else { matrix.keeps_grads };
                    assert!(match *place {
                        Place::Kept(part) => keeps && kept[part] == matrix.width,
                        Place::Shared(part) => !keeps && shared[part] >= matrix.width,
                    });
                    for (other, known) in places.iter().zip(&matrices).skip(i + 1) {
                        let together = matrix.life[0] <= known.life[1] && known.life[0] <= matrix.life[1];
                        assert!(place != other || !together && !keeps, "{place:?} of {matrix:?} and {known:?}");
                    }
                }
            }
        }
    }

    /// A chain of operations needs the room of two of its matrices and not of all.
    #[test]
    fn a_chain_needs_little_at_once() {
        let link = |i: usize| Matrix { life: [i, i + 1], ..Matrix::of(8, 0) };
        let layout = Layout::new(&(0..10).map(link).collect::<Vec<_>>(), 0, vec![0; 9], 0, 0);
        assert_eq!(layout[Of::Values].shared, [8, 8]);
        assert_eq!(layout[Of::Grads].shared, [8, 8]);
    }
}
