//! What is logged and what is traced, from and to messages.

use crate::fault::{Fault, one_line};
use crate::log::{LogChange, LogSettings};
use crate::proto::log_settings_request::SettingValue;
use crate::proto::log_settings_request::setting_value::ParameterChoice as Wanted;
use crate::proto::log_settings_response::setting_value::ParameterChoice as Found;
use crate::proto::{log_settings_response, trace_setting_request, trace_setting_response};
use crate::trace::{TraceChange, TraceSettings};
use std::collections::BTreeMap;

/// What is to be changed.
pub(super) fn change(settings: BTreeMap<String, SettingValue>) -> Result<LogChange, Fault> {
    let mut change = LogChange::default();
    for (name, value) in settings {
        match (&*name, value.parameter_choice) {
            ("log_file", Some(Wanted::StringParam(file))) => change.log_file = Some(file),
            ("log_format", Some(Wanted::StringParam(format))) => change.log_format = Some(format),
            ("log_info", Some(Wanted::BoolParam(on))) => change.log_info = Some(on),
            ("log_warning", Some(Wanted::BoolParam(on))) => change.log_warning = Some(on),
            ("log_error", Some(Wanted::BoolParam(on))) => change.log_error = Some(on),
            ("log_verbose_level", Some(Wanted::Uint32Param(level))) => change.log_verbose_level = Some(level),
            (_, found) => return Err(wrong(&name, found.as_ref())),
        }
    }
    Ok(change)
}

fn wrong(name: &str, found: Option<&Wanted>) -> Fault {
    let expected = match name {
        "log_file" | "log_format" => "a text",
        "log_info" | "log_warning" | "log_error" => "true or false",
        "log_verbose_level" => "a number from 0 to 2^32 - 1",
        _ => return Fault::input(format!("there is no setting {}", one_line(name))),
    };
    let found = match found {
        None => "nothing",
        Some(Wanted::BoolParam(_)) => "true or false",
        Some(Wanted::Uint32Param(_)) => "a number",
        Some(Wanted::StringParam(_)) => "a text",
    };
    Fault::input(format!("{name}: expected {expected}, found {found}"))
}

/// What is set.
pub(super) fn settings(settings: LogSettings) -> BTreeMap<String, log_settings_response::SettingValue> {
    let LogSettings { log_file, log_info, log_warning, log_error, log_verbose_level, log_format } = settings;
    let values = [
        ("log_file", Found::StringParam(log_file.to_owned())),
        ("log_info", Found::BoolParam(log_info)),
        ("log_warning", Found::BoolParam(log_warning)),
        ("log_error", Found::BoolParam(log_error)),
        ("log_verbose_level", Found::Uint32Param(log_verbose_level)),
        ("log_format", Found::StringParam(log_format.to_owned())),
    ];
    let value = |choice| log_settings_response::SettingValue { parameter_choice: Some(choice) };
    values.into_iter().map(|(name, choice)| (name.to_owned(), value(choice))).collect()
}

/// What of the traces is to be changed. A setting without values is to be as for all models, or as at the start.
pub(super) fn trace_change(settings: BTreeMap<String, trace_setting_request::SettingValue>) -> TraceChange {
    settings.into_iter().map(|(name, setting)| (name, Some(setting.value).filter(|values| !values.is_empty()))).collect()
}

/// Which requests are traced.
pub(super) fn trace(settings: TraceSettings) -> BTreeMap<String, trace_setting_response::SettingValue> {
    let TraceSettings { trace_file, trace_level, trace_rate, trace_count, log_frequency } = settings;
    let level = trace_level.into_iter().map(str::to_owned).collect();
    let values = [
        ("trace_file", vec![trace_file]),
        ("trace_level", level),
        ("trace_rate", vec![trace_rate]),
        ("trace_count", vec![trace_count]),
        ("log_frequency", vec![log_frequency]),
    ];
    values.into_iter().map(|(name, value)| (name.to_owned(), trace_setting_response::SettingValue { value })).collect()
}
