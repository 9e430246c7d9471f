//! Races between threads: two accesses of one word, at least one a write, with nothing that orders them.
use super::access::Place;
use crate::error::Fault;

/// What a launch remembers over its blocks.
pub struct Grid;

impl Grid {
    pub fn new(_on: bool) -> Self {
        Self
    }
}

/// What a block remembers.
pub struct Local;

/// What one thread reports to.
pub struct Watch<'a> {
    pub grid: &'a mut Grid,
    pub block: &'a mut Local,
    pub thread: usize,
}

impl Watch<'_> {
    pub fn read(&mut self, _place: Place, _len: usize, _sync: bool, _pc: usize) -> Result<(), Fault> {
        Ok(())
    }

    pub fn write(&mut self, _place: Place, _len: usize, _sync: bool, _pc: usize) -> Result<(), Fault> {
        Ok(())
    }

    pub fn atomic(&mut self, _place: Place, _len: usize, _pc: usize) -> Result<(), Fault> {
        Ok(())
    }

    pub fn fence(&mut self) {}
}

impl Local {
    pub fn warp(&mut self, _first: usize, _members: u32) {}
    pub fn arrive(&mut self, _id: usize, _thread: usize) {}
    pub fn barrier(&mut self, _id: usize, _threads: impl Iterator<Item = usize>) {}
}
