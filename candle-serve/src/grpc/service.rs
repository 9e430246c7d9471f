//! The methods of the protocol's service.

use super::deadline::timeout;
use super::describe;
use super::infer::{infer, version};
use super::status::status;
use super::stream::{Answers, OnError, answers};
use crate::fault::Fault;
use crate::inference::unsupported;
use crate::keys::Principal;
use crate::model::Model;
use crate::proto::grpc_inference_service_server::GrpcInferenceService;
use crate::proto::*;
use crate::protocol::describe::ServerMetadata;
use crate::server::Shared;
use std::sync::Arc;
use std::time::Instant;
use tonic::{Request, Response, Status, Streaming};

/// The protocol's service.
pub(super) struct Service {
    pub shared: Arc<Shared>,
}

impl Service {
    fn model(&self, name: &str, number: &str) -> Result<Arc<Model>, Fault> {
        version(name, number)?;
        self.shared.repository.model(name)
    }
}

/// Who asks, as the connection has found out.
fn principal<T>(request: &Request<T>) -> Principal {
    request.extensions().get::<Principal>().cloned().flatten()
}

/// What became of a request.
fn answer<T>(answer: Result<T, Fault>) -> Result<Response<T>, Status> {
    answer.map(Response::new).map_err(status)
}

/// There is one repository, which has no name.
fn only_repository(name: &str) -> Result<(), Fault> {
    if name.is_empty() { Ok(()) } else { Err(unsupported("repository_name")) }
}

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Result<Response<ServerReadyResponse>, Status> {
        Ok(Response::new(ServerReadyResponse { ready: self.shared.readiness().is_none() }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Result<Response<ModelReadyResponse>, Status> {
        let ModelReadyRequest { name, version } = request.into_inner();
        Ok(Response::new(ModelReadyResponse { ready: self.model(&name, &version).is_ok() }))
    }

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> Result<Response<ServerMetadataResponse>, Status> {
        let ServerMetadata { name, version, extensions } = self.shared.metadata();
        let extensions = extensions.into_iter().map(str::to_owned).collect();
        Ok(Response::new(ServerMetadataResponse { name: name.to_owned(), version: version.to_owned(), extensions }))
    }

    async fn model_metadata(&self, request: Request<ModelMetadataRequest>) -> Result<Response<ModelMetadataResponse>, Status> {
        let ModelMetadataRequest { name, version } = request.into_inner();
        answer(self.model(&name, &version).map(|model| describe::metadata(model.metadata())))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Result<Response<ModelInferResponse>, Status> {
        let limit = timeout(request.metadata()).map_err(status)?;
        answer(infer(&self.shared, &principal(&request), request.get_ref(), limit).await)
    }

    type ModelStreamInferStream = Answers;

    async fn model_stream_infer(&self, request: Request<Streaming<ModelInferRequest>>) -> Result<Response<Answers>, Status> {
        let deadline = timeout(request.metadata()).map_err(status)?.map(|limit| Instant::now() + limit);
        let on_error = OnError::of(request.metadata());
        Ok(Response::new(answers(self.shared.clone(), principal(&request), request.into_inner(), deadline, on_error)))
    }

    async fn model_config(&self, request: Request<ModelConfigRequest>) -> Result<Response<ModelConfigResponse>, Status> {
        let ModelConfigRequest { name, version } = request.into_inner();
        let config = self.model(&name, &version).map(|model| describe::config(self.shared.config(&model)));
        answer(config.map(|config| ModelConfigResponse { config: Some(config) }))
    }

    async fn model_statistics(&self, request: Request<ModelStatisticsRequest>) -> Result<Response<ModelStatisticsResponse>, Status> {
        let ModelStatisticsRequest { name, version: number } = request.into_inner();
        version(&name, &number).map_err(status)?;
        let models = self.shared.models((!name.is_empty()).then_some(&*name));
        let statistics = |models: Vec<Arc<Model>>| models.iter().map(|model| describe::statistics(model.report())).collect();
        answer(models.map(|models| ModelStatisticsResponse { model_stats: statistics(models) }))
    }

    async fn repository_index(&self, request: Request<RepositoryIndexRequest>) -> Result<Response<RepositoryIndexResponse>, Status> {
        let RepositoryIndexRequest { repository_name, ready } = request.into_inner();
        only_repository(&repository_name).map_err(status)?;
        let index = self.shared.index(ready).await;
        answer(index.map(|entries| RepositoryIndexResponse { models: entries.into_iter().map(describe::index).collect() }))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Result<Response<RepositoryModelLoadResponse>, Status> {
        let RepositoryModelLoadRequest { repository_name, model_name, parameters } = request.into_inner();
        only_repository(&repository_name).map_err(status)?;
        let loaded = self.shared.load(&model_name, parameters.keys().map(String::as_str)).await;
        answer(loaded.map(|()| RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Result<Response<RepositoryModelUnloadResponse>, Status> {
        let RepositoryModelUnloadRequest { repository_name, model_name, .. } = request.into_inner();
        only_repository(&repository_name).map_err(status)?;
        answer(self.shared.unload(&model_name).await.map(|()| RepositoryModelUnloadResponse {}))
    }

    async fn system_shared_memory_status(
        &self,
        _: Request<SystemSharedMemoryStatusRequest>,
    ) -> Result<Response<SystemSharedMemoryStatusResponse>, Status> {
        answer(Err(unsupported("shared memory")))
    }

    async fn system_shared_memory_register(
        &self,
        _: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Result<Response<SystemSharedMemoryRegisterResponse>, Status> {
        answer(Err(unsupported("shared memory")))
    }

    async fn system_shared_memory_unregister(
        &self,
        _: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Result<Response<SystemSharedMemoryUnregisterResponse>, Status> {
        answer(Err(unsupported("shared memory")))
    }

    async fn cuda_shared_memory_status(
        &self,
        _: Request<CudaSharedMemoryStatusRequest>,
    ) -> Result<Response<CudaSharedMemoryStatusResponse>, Status> {
        answer(Err(unsupported("shared memory of a GPU")))
    }

    async fn cuda_shared_memory_register(
        &self,
        _: Request<CudaSharedMemoryRegisterRequest>,
    ) -> Result<Response<CudaSharedMemoryRegisterResponse>, Status> {
        answer(Err(unsupported("shared memory of a GPU")))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Result<Response<CudaSharedMemoryUnregisterResponse>, Status> {
        answer(Err(unsupported("shared memory of a GPU")))
    }

    async fn trace_setting(&self, _: Request<TraceSettingRequest>) -> Result<Response<TraceSettingResponse>, Status> {
        answer(Err(unsupported("tracing")))
    }

    async fn log_settings(&self, _: Request<LogSettingsRequest>) -> Result<Response<LogSettingsResponse>, Status> {
        answer(Err(unsupported("a setting of the log")))
    }
}
