//! Graphs: captured work that is launched again and again.
use std::sync::Arc;

use super::{Action, Driver, Handle, Work, WorkKind, api, put};
use crate::{
    error::{Code, Fault},
    log::Tally,
    memory::State,
};

const AUTO_FREE_ON_LAUNCH: u64 = 1;
const DEVICE_LAUNCH: u64 = 4;

/// Captured work, in an order that respects all dependencies: that of the calls.
#[derive(Default)]
pub struct Graph {
    pub nodes: Vec<Work>,
    allocated: Vec<u64>,
    /// Those of `allocated` that the graph does not free itself.
    left: Vec<u64>,
}

/// An executable graph.
pub struct Exec {
    graph: Arc<Graph>,
    flags: u64,
}

/// A graph's allocation.
#[derive(Clone, Copy, Default)]
pub struct GraphMemory {
    /// Allocated by a launch and not freed, in the order of the calls.
    pub live: bool,
    /// The graph is gone: the next free is the last.
    pub orphan: bool,
}

impl Graph {
    pub(crate) fn new(nodes: Vec<Work>, allocated: Vec<u64>, freed: Vec<u64>) -> Self {
        let left = allocated.iter().copied().filter(|a| !freed.contains(a)).collect();
        Self { nodes, allocated, left }
    }

    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for node in &self.nodes {
            node.count(&mut tally);
        }
        tally
    }

    /// Frees what the last launch left, if the graph was instantiated so.
    pub(crate) fn prepare(&self, driver: &mut Driver, auto_free: bool) -> Result<(), Fault> {
        for base in self.left.iter().filter(|_| auto_free) {
            if let Some(allocation) = driver.memory.at(*base) {
                allocation.state = State::Dormant;
            }
        }
        Ok(())
    }
}

impl Driver {
    /// Releases the memory of a graph that nothing refers to any more.
    fn retire(&mut self, graph: &Arc<Graph>) -> Result<(), Fault> {
        let used = self.graphs.values().chain(self.execs.values().map(|e| &e.graph)).any(|g| Arc::ptr_eq(g, graph));
        if used {
            return Ok(());
        }
        for base in &graph.allocated {
            match self.graph_memory.get_mut(base) {
                Some(memory) if memory.live => memory.orphan = true,
                Some(_) => {
                    self.graph_memory.remove(base);
                    self.memory.free(*base)?;
                }
                None => {}
            }
        }
        Ok(())
    }

    fn exec(&self, exec: Handle) -> Result<&Exec, Fault> {
        let key = exec as usize;
        self.execs.get(&key).ok_or_else(|| Fault::new(Code::InvalidHandle, format!("no executable graph {key:#x}")))
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) -> i32 {
    api(|driver| {
        let graph = driver.graphs.get(&(graph as usize)).ok_or(Code::InvalidValue)?.clone();
        if flags & AUTO_FREE_ON_LAUNCH != 0 && flags & DEVICE_LAUNCH != 0 {
            return Err(Fault::new(Code::InvalidValue, "a graph for launches from the device cannot free on launch"));
        }
        if !graph.allocated.is_empty() && driver.execs.values().any(|e| Arc::ptr_eq(&e.graph, &graph)) {
            return Err(Fault::new(Code::NotSupported, "a graph that allocates memory is instantiated twice"));
        }
        let key = driver.handle();
        driver.execs.insert(key, Exec { graph, flags });
        put(exec, key as Handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphInstantiate_v2(exec: *mut Handle, graph: Handle, _node: *mut Handle, _log: *mut i8, _size: usize) -> i32 {
    cuGraphInstantiateWithFlags(exec, graph, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(exec: Handle, stream: Handle) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        let exec = driver.exec(exec)?;
        let (graph, auto_free) = (exec.graph.clone(), exec.flags & AUTO_FREE_ON_LAUNCH != 0);
        if driver.streams[&key].capture.is_some() && !graph.allocated.is_empty() {
            return Err(Fault::new(Code::NotSupported, "a graph that allocates memory inside a capture"));
        }
        for base in &graph.left {
            let memory = driver.graph_memory.entry(*base).or_default();
            if memory.live && !auto_free {
                let text = "the graph's memory from the last launch is not freed: instantiate it to free on launch";
                return Err(Fault::new(Code::InvalidValue, text));
            }
            memory.live = true;
        }
        driver.enqueue(key, Work { kind: WorkKind::Other, action: Action::Graph(graph, auto_free) })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(exec: Handle, stream: Handle) -> i32 {
    api(|driver| {
        driver.stream_key(stream)?;
        driver.exec(exec).map(|_| ())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(exec: Handle) -> i32 {
    api(|driver| {
        driver.exec(exec)?;
        // Queued launches hold the graph and go on.
        driver.run_all();
        match driver.execs.remove(&(exec as usize)) {
            Some(exec) => driver.retire(&exec.graph),
            None => Ok(()),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Handle) -> i32 {
    api(|driver| match driver.graphs.remove(&(graph as usize)) {
        Some(graph) => driver.retire(&graph),
        None => Err(Code::InvalidValue.into()),
    })
}

/// Replaces an executable graph's work by that of a graph of the same shape.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecUpdate_v2(exec: Handle, graph: Handle, result: *mut u32) -> i32 {
    api(|driver| {
        let graph = driver.graphs.get(&(graph as usize)).ok_or(Code::InvalidValue)?.clone();
        driver.exec(exec)?;
        let Some(exec) = driver.execs.get_mut(&(exec as usize)) else { return Err(Code::InvalidValue.into()) };
        let kinds = |g: &Graph| g.nodes.iter().map(|n| n.kind).collect::<Vec<_>>();
        if kinds(&exec.graph) != kinds(&graph) || !graph.allocated.is_empty() {
            // CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
            put(result, 2)?;
            return Err(Fault::new(Code::GraphExecUpdate, "the graphs differ in their nodes"));
        }
        exec.graph = graph;
        put(result, 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) -> i32 {
    api(|driver| {
        let graph = driver.graphs.get(&(graph as usize)).ok_or(Code::InvalidValue)?;
        if !nodes.is_null() {
            return Err(Fault::new(Code::NotSupported, "the nodes of a graph are not handed out"));
        }
        put(count, graph.nodes.len())
    })
}
