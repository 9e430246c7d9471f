//! Modules: PTX text becomes functions and variables.
use std::{
    collections::HashMap,
    ffi::{c_char, c_void},
    sync::Arc,
};

use super::{Driver, Function, Handle, api, current, put, text};
use crate::{
    error::{Code, Fault},
    log,
    memory::{Kind, State},
    ptx::{self, Space},
};

/// A loaded module.
pub struct Loaded {
    pub module: Arc<ptx::Module>,
    pub globals: Arc<HashMap<String, u64>>,
    functions: HashMap<String, usize>,
}

impl Driver {
    fn load(&mut self, source: &str) -> Result<usize, Fault> {
        let device = current()?;
        let module = ptx::Module::parse(source).map_err(|e| Fault::new(Code::InvalidPtx, e))?;
        let digits: String = module.target.trim_start_matches("sm_").chars().take_while(char::is_ascii_digit).collect();
        let wanted: i32 = digits.parse().unwrap_or(0);
        let (major, minor) = self.config.capability;
        if wanted > 10 * major + minor {
            let text = format!("the module is for {}, the device has compute capability {major}.{minor}", module.target);
            return Err(Fault::new(Code::NoBinaryForGpu, text));
        }
        let mut globals = HashMap::new();
        for variable in module.variables.values().filter(|v| matches!(v.space, Space::Global | Space::Const) && v.size > 0) {
            let kind = if variable.space == Space::Const { Kind::Constant } else { Kind::Variable };
            let origin = format!("variable `{}`", variable.name);
            let base = self.memory.allocate(variable.size, kind, State::Live, device, &origin).ok_or(Code::OutOfMemory)?;
            globals.insert(variable.name.clone(), base);
        }
        for variable in module.variables.values() {
            let Some(base) = globals.get(&variable.name) else { continue };
            let mut bytes = variable.init.clone();
            // What has no initialiser is zero.
            bytes.resize(variable.size, 0);
            for symbol in &variable.symbols {
                let address =
                    globals.get(&symbol.name).ok_or_else(|| Fault::new(Code::InvalidPtx, format!("unknown symbol `{}`", symbol.name)))?;
                bytes[symbol.at..symbol.at + 8].copy_from_slice(&(address + symbol.addend).to_le_bytes());
            }
            if let Some(allocation) = self.memory.at(*base) {
                // SAFETY: the allocation has as many bytes as the variable.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), allocation.host, bytes.len()) };
            }
        }
        let key = self.handle();
        self.modules.insert(key, Loaded { module: Arc::new(module), globals: Arc::new(globals), functions: HashMap::new() });
        Ok(key)
    }

    fn module(&mut self, module: Handle) -> Result<&mut Loaded, Fault> {
        let key = module as usize;
        self.modules.get_mut(&key).ok_or_else(|| Fault::new(Code::InvalidHandle, format!("no module {key:#x}")))
    }
}

/// The text of an image, if it is text.
fn image_text(image: *const c_void) -> Result<String, Fault> {
    if image.is_null() {
        return Err(Code::InvalidValue.into());
    }
    // SAFETY: an image is at least a header of four bytes.
    let head = unsafe { image.cast::<[u8; 4]>().read_unaligned() };
    let what = match head {
        [0x7f, b'E', b'L', b'F'] => Some("a cubin (machine code)"),
        [0x50, 0xed, 0x55, 0xba] => Some("a fat binary"),
        [b'B', b'C', ..] | [0xde, 0xc0, 0x17, 0x0b] => Some("LLVM bitcode"),
        _ => None,
    };
    if let Some(what) = what {
        let text = format!("the module is {what}: the emulator runs PTX text only, compile for a virtual architecture");
        return Err(Fault::new(Code::NoBinaryForGpu, text));
    }
    text(image.cast::<c_char>())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> i32 {
    api(|driver| {
        driver.unsafe_call("loading a module")?;
        let key = driver.load(&image_text(image)?)?;
        put(module, key as Handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadDataEx(module: *mut Handle, image: *const c_void, _n: u32, _options: *mut u32, _values: *mut Handle) -> i32 {
    cuModuleLoadData(module, image)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadFatBinary(module: *mut Handle, image: *const c_void) -> i32 {
    cuModuleLoadData(module, image)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoad(module: *mut Handle, path: *const c_char) -> i32 {
    let path = match text(path) {
        Ok(path) => path,
        Err(fault) => return fault.code as i32,
    };
    match std::fs::read(&path) {
        Ok(mut bytes) => {
            bytes.push(0);
            bytes.resize(bytes.len().max(4), 0);
            cuModuleLoadData(module, bytes.as_ptr().cast())
        }
        Err(error) => {
            log::error(&format!("{path}: {error}"));
            Code::FileNotFound as i32
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> i32 {
    api(|driver| {
        driver.module(module)?;
        driver.run_all();
        let Some(loaded) = driver.modules.remove(&(module as usize)) else { return Err(Code::InvalidHandle.into()) };
        for function in loaded.functions.values() {
            driver.functions.remove(function);
        }
        for base in loaded.globals.values() {
            driver.memory.free(*base)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> i32 {
    api(|driver| {
        let name = text(name)?;
        let fresh = driver.handle();
        let loaded = driver.module(module)?;
        if let Some(known) = loaded.functions.get(&name) {
            return put(function, *known as Handle);
        }
        let entry = loaded.module.functions.get(&name).filter(|f| f.entry);
        let entry = entry.ok_or_else(|| Fault::new(Code::NotFound, format!("no kernel `{name}` in the module")))?;
        let made = Function::new(entry, loaded.module.clone(), loaded.globals.clone());
        loaded.functions.insert(name, fresh);
        driver.functions.insert(fresh, made);
        put(function, fresh as Handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetGlobal_v2(address: *mut u64, size: *mut usize, module: Handle, name: *const c_char) -> i32 {
    api(|driver| {
        let name = text(name)?;
        let loaded = driver.module(module)?;
        let base = *loaded.globals.get(&name).ok_or_else(|| Fault::new(Code::NotFound, format!("no variable `{name}`")))?;
        if !size.is_null() {
            put(size, loaded.module.variables[&name].size)?;
        }
        if address.is_null() { Ok(()) } else { put(address, base) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetLoadingMode(mode: *mut u32) -> i32 {
    // CU_MODULE_LAZY_LOADING
    api(|_| put(mode, 2))
}
