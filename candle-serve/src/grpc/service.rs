//! The methods of the protocol's service.

use super::describe;
use super::infer::{infer, tell, version};
use super::metadata::{Beside, timeout};
use super::settings;
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
use crate::shared_memory::Description;
use crate::spans::{Parent, Span};
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

    /// Answers a call about a model, if it is about one, and tells the log.
    async fn answer<T>(&self, call: &str, model: &str, answered: impl Future<Output = Result<T, Fault>>) -> Result<Response<T>, Status> {
        let began = Instant::now();
        let answered = answered.await;
        tell(&self.shared, call, model, began, answered.as_ref().err());
        answered.map(Response::new).map_err(status)
    }
}

/// Who asks, as the connection has found out.
fn principal<T>(request: &Request<T>) -> Principal {
    request.extensions().get::<Principal>().cloned().flatten()
}

/// The name of a region; an empty one means all.
fn region(name: &str) -> Option<&str> {
    Some(name).filter(|name| !name.is_empty())
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
        let metadata = async { self.model(&name, &version).map(|model| describe::metadata(model.metadata())) };
        self.answer("ModelMetadata", &name, metadata).await
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Result<Response<ModelInferResponse>, Status> {
        let beside = Beside::of(request.metadata()).map_err(status)?;
        let span = request.extensions().get::<Span>();
        infer(&self.shared, &principal(&request), request.get_ref(), beside, span).await.map(Response::new).map_err(status)
    }

    type ModelStreamInferStream = Answers;

    async fn model_stream_infer(&self, request: Request<Streaming<ModelInferRequest>>) -> Result<Response<Answers>, Status> {
        let deadline = timeout(request.metadata()).map_err(status)?.map(|limit| Instant::now() + limit);
        let on_error = OnError::of(request.metadata());
        let (principal, parent) = (principal(&request), request.extensions().get::<Parent>().cloned());
        Ok(Response::new(answers(self.shared.clone(), (principal, parent), request.into_inner(), deadline, on_error)))
    }

    async fn model_config(&self, request: Request<ModelConfigRequest>) -> Result<Response<ModelConfigResponse>, Status> {
        let ModelConfigRequest { name, version } = request.into_inner();
        let config = async {
            let model = self.model(&name, &version)?;
            Ok(ModelConfigResponse { config: Some(describe::config(self.shared.config(&model))) })
        };
        self.answer("ModelConfig", &name, config).await
    }

    async fn model_statistics(&self, request: Request<ModelStatisticsRequest>) -> Result<Response<ModelStatisticsResponse>, Status> {
        let ModelStatisticsRequest { name, version: number } = request.into_inner();
        let statistics = async {
            version(&name, &number)?;
            let models = self.shared.models((!name.is_empty()).then_some(&*name))?;
            Ok(ModelStatisticsResponse { model_stats: models.iter().map(|model| describe::statistics(model.report())).collect() })
        };
        self.answer("ModelStatistics", &name, statistics).await
    }

    async fn repository_index(&self, request: Request<RepositoryIndexRequest>) -> Result<Response<RepositoryIndexResponse>, Status> {
        let RepositoryIndexRequest { repository_name, ready } = request.into_inner();
        let index = async {
            only_repository(&repository_name)?;
            let entries = self.shared.index(ready).await?;
            Ok(RepositoryIndexResponse { models: entries.into_iter().map(describe::index).collect() })
        };
        self.answer("RepositoryIndex", "", index).await
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Result<Response<RepositoryModelLoadResponse>, Status> {
        let RepositoryModelLoadRequest { repository_name, model_name, parameters } = request.into_inner();
        let loaded = async {
            only_repository(&repository_name)?;
            self.shared.load(&model_name, parameters.keys().map(String::as_str)).await?;
            Ok(RepositoryModelLoadResponse {})
        };
        self.answer("RepositoryModelLoad", &model_name, loaded).await
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Result<Response<RepositoryModelUnloadResponse>, Status> {
        let RepositoryModelUnloadRequest { repository_name, model_name, .. } = request.into_inner();
        let unloaded = async {
            only_repository(&repository_name)?;
            self.shared.unload(&model_name).await?;
            Ok(RepositoryModelUnloadResponse {})
        };
        self.answer("RepositoryModelUnload", &model_name, unloaded).await
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> Result<Response<SystemSharedMemoryStatusResponse>, Status> {
        let status = async {
            let regions = self.shared.regions.status(region(&request.get_ref().name))?;
            Ok(SystemSharedMemoryStatusResponse { regions: regions.into_iter().map(describe::region).collect() })
        };
        self.answer("SystemSharedMemoryStatus", "", status).await
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Result<Response<SystemSharedMemoryRegisterResponse>, Status> {
        let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = request.into_inner();
        let registered = async {
            self.shared.regions.register(Description { name, key, offset, byte_size })?;
            Ok(SystemSharedMemoryRegisterResponse {})
        };
        self.answer("SystemSharedMemoryRegister", "", registered).await
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Result<Response<SystemSharedMemoryUnregisterResponse>, Status> {
        let unregistered = async {
            self.shared.regions.unregister(region(&request.get_ref().name))?;
            Ok(SystemSharedMemoryUnregisterResponse {})
        };
        self.answer("SystemSharedMemoryUnregister", "", unregistered).await
    }

    async fn cuda_shared_memory_status(
        &self,
        _: Request<CudaSharedMemoryStatusRequest>,
    ) -> Result<Response<CudaSharedMemoryStatusResponse>, Status> {
        Ok(Response::new(CudaSharedMemoryStatusResponse::default()))
    }

    async fn cuda_shared_memory_register(
        &self,
        _: Request<CudaSharedMemoryRegisterRequest>,
    ) -> Result<Response<CudaSharedMemoryRegisterResponse>, Status> {
        Err(status(unsupported("shared memory on a GPU")))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Result<Response<CudaSharedMemoryUnregisterResponse>, Status> {
        Err(status(unsupported("shared memory on a GPU")))
    }

    async fn trace_setting(&self, request: Request<TraceSettingRequest>) -> Result<Response<TraceSettingResponse>, Status> {
        let TraceSettingRequest { settings, model_name } = request.into_inner();
        let set = async {
            let model = Some(&*model_name).filter(|name| !name.is_empty());
            model.map_or(Ok(()), |name| self.shared.repository.model(name).map(drop))?;
            if !settings.is_empty() {
                self.shared.traces.change(model, &settings::trace_change(settings))?;
            }
            Ok(TraceSettingResponse { settings: settings::trace(self.shared.traces.settings(model)) })
        };
        self.answer("TraceSetting", &model_name, set).await
    }

    async fn log_settings(&self, request: Request<LogSettingsRequest>) -> Result<Response<LogSettingsResponse>, Status> {
        let set = async {
            self.shared.log.change(&settings::change(request.into_inner().settings)?)?;
            Ok(LogSettingsResponse { settings: settings::settings(self.shared.log.settings()) })
        };
        self.answer("LogSettings", "", set).await
    }
}
