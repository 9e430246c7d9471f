//! What a server says of itself and of its models, as messages.

use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_metadata_response::TensorMetadata;
use crate::proto::model_sequence_batching::{StrategyChoice, StrategyOldest};
use crate::proto::repository_index_response::ModelIndex;
use crate::proto::system_shared_memory_status_response::RegionStatus;
use crate::proto::{self, DataType, ModelParameter, StatisticDuration};
use crate::protocol::describe::{self, IndexEntry, ModelConfig, ModelMetadata};
use crate::shared_memory::Description;
use crate::statistics::{BatchStats, Counted, InferenceStats, Report};

pub(super) fn metadata(model: ModelMetadata<'_>) -> proto::ModelMetadataResponse {
    let tensor = |tensor: describe::TensorMetadata<'_>| TensorMetadata {
        name: tensor.name.to_owned(),
        datatype: tensor.datatype.to_owned(),
        shape: tensor.shape,
    };
    proto::ModelMetadataResponse {
        name: model.name.to_owned(),
        versions: model.versions.map(str::to_owned).into(),
        platform: model.platform.to_owned(),
        inputs: model.inputs.into_iter().map(tensor).collect(),
        outputs: model.outputs.into_iter().map(tensor).collect(),
    }
}

pub(super) fn config(config: ModelConfig<'_>) -> proto::ModelConfig {
    // Both have the protocol's names.
    let data_type = |name: &str| DataType::from_str_name(name).unwrap_or_default().into();
    let small = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let input = |input: describe::ConfigInput<'_>| proto::ModelInput {
        name: input.name.to_owned(),
        data_type: data_type(input.data_type),
        dims: input.dims,
        optional: input.optional,
    };
    let output = |output: describe::ConfigOutput<'_>| proto::ModelOutput {
        name: output.name.to_owned(),
        data_type: data_type(output.data_type),
        dims: output.dims,
    };
    let sequences = |sequences: describe::SequenceBatching| {
        let oldest = StrategyOldest { max_candidate_sequences: small(sequences.oldest.max_candidate_sequences) };
        SchedulingChoice::SequenceBatching(proto::ModelSequenceBatching {
            max_sequence_idle_microseconds: sequences.max_sequence_idle_microseconds,
            strategy_choice: Some(StrategyChoice::Oldest(oldest)),
        })
    };
    proto::ModelConfig {
        name: config.name.to_owned(),
        platform: config.platform.to_owned(),
        max_batch_size: small(config.max_batch_size),
        input: config.input.into_iter().map(input).collect(),
        output: config.output.into_iter().map(output).collect(),
        parameters: config.parameters.into_iter().map(|(name, text)| (name, ModelParameter { string_value: text.string_value })).collect(),
        backend: config.backend.to_owned(),
        scheduling_choice: config.sequence_batching.map(sequences),
    }
}

pub(super) fn statistics(report: Report<'_>) -> proto::ModelStatistics {
    proto::ModelStatistics {
        name: report.name.to_owned(),
        version: report.version.to_owned(),
        last_inference: report.last_inference,
        inference_count: report.inference_count,
        execution_count: report.execution_count,
        inference_stats: Some(inferences(&report.inference_stats)),
        batch_stats: report.batch_stats.iter().map(batches).collect(),
        // The engine does not count its memory.
        memory_usage: Vec::new(),
    }
}

fn duration(counted: Counted) -> Option<StatisticDuration> {
    Some(StatisticDuration { count: counted.count, ns: counted.ns })
}

fn inferences(stats: &InferenceStats) -> proto::InferStatistics {
    proto::InferStatistics {
        success: duration(stats.success),
        fail: duration(stats.fail),
        queue: duration(stats.queue),
        compute_input: duration(stats.compute_input),
        compute_infer: duration(stats.compute_infer),
        compute_output: duration(stats.compute_output),
        cache_hit: duration(stats.cache_hit),
        cache_miss: duration(stats.cache_miss),
    }
}

fn batches(stats: &BatchStats) -> proto::InferBatchStatistics {
    proto::InferBatchStatistics {
        batch_size: stats.batch_size,
        compute_input: duration(stats.compute_input),
        compute_infer: duration(stats.compute_infer),
        compute_output: duration(stats.compute_output),
    }
}

pub(super) fn index(entry: IndexEntry) -> ModelIndex {
    ModelIndex { name: entry.name, version: entry.version.to_owned(), state: entry.state.name().to_owned(), reason: entry.reason }
}

pub(super) fn region(region: Description) -> (String, RegionStatus) {
    let Description { name, key, offset, byte_size } = region;
    (name.clone(), RegionStatus { name, key, offset, byte_size })
}
