pub mod change {
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct ChangePlan {
        pub base: String,
        pub digest: String,
        pub operations: Vec<Operation>,
        pub warnings: Vec<ConfigMistake>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct Applied {
        pub number: u64,
        pub digest: String,
        pub operations: Vec<Operation>,
        pub confirm_s: Option<u64>,
        pub warnings: Vec<ConfigMistake>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct Operation {
        pub operation: OperationKind,
        pub name: String,
        pub keys: Vec<String>,
        pub hitless: bool,
        pub why: String,
        pub state: Option<String>,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[non_exhaustive]
    pub enum OperationKind {
        AddStage,
        RemoveStage,
        ReplaceStage,
        RenewStage,
        ConnectStage,
        ChangeEntry,
        AddPort,
        RemovePort,
        ChangePort,
        AddWorker,
        RemoveWorker,
        MoveWorker,
        RestartWorkers,
        ChangeRuntime,
        Other,
    }
    impl OperationKind {
        pub fn words(self) -> &'static str {}
    }
    impl fmt::Display for Operation {}
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct ConfigMistake {
        pub level: String,
        pub file: String,
        pub line: usize,
        pub column: usize,
        pub message: String,
        pub help: Option<String>,
    }
    impl fmt::Display for ConfigMistake {}
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct HistoryRow {
        pub number: u64,
        pub time_s: u64,
        pub digest: String,
        pub operations: u64,
        pub cause: String,
        pub state: ChangeState,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum ChangeState {
        InForce,
        Unconfirmed,
        Replaced,
        Reverted,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct History {
        pub changes: Vec<HistoryRow>,
    }
}
mod client {
    #[derive(Debug)]
    pub struct Client {
        private: _,
    }
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Answer {
        private: _,
    }
    impl Answer {
        pub fn json(&self) -> &str {}
        pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Error> {}
        pub fn parse_exactly<T: DeserializeOwned>(&self) -> Result<T, Error> {}
    }
    impl Client {
        pub fn connect(path: &Path) -> Result<Self, Error> {}
        pub fn of_process(process: u32) -> Result<Self, Error> {}
        pub fn only() -> Result<Self, Error> {}
        pub fn all() -> (Vec<(u32, Self)>, usize) {}
        pub fn set_timeout(&mut self, timeout: Duration) -> Result<(), Error> {}
        pub fn of_stream(stream: UnixStream, path: &Path) -> Self {}
        pub fn stream(&self) -> &UnixStream {}
        pub fn into_stream(self) -> UnixStream {}
        pub fn path(&self) -> &Path {}
        pub fn call(&mut self, call: &Call) -> Result<Answer, Error> {}
        pub fn call_with_descriptors(
            &mut self,
            call: &Call,
            descriptors: &[BorrowedFd<'_>],
        ) -> Result<Answer, Error> {}
        pub fn hello(&mut self) -> Result<Hello, Error> {}
        pub fn show(&mut self, show: Show) -> Pages<'_> {}
        pub fn get(&mut self, get: Get) -> Result<GetResult, Error> {}
    }
    #[derive(Debug)]
    pub struct Pages<'a> {
        private: _,
    }
    impl Iterator for Pages<'_> {}
}
mod error {
    #[derive(Debug)]
    #[non_exhaustive]
    pub enum Error {
        Path(String),
        NotListening(PathBuf),
        Busy(PathBuf),
        Socket(PathBuf, io::Error),
        NoProcess(u32),
        NotRunning { others: usize },
        Several(Vec<u32>),
        Timeout(PathBuf, u64),
        Ended(PathBuf),
        Refused(PathBuf, Refusal),
        Answer(PathBuf, String),
    }
    impl fmt::Display for Error {}
    impl std::error::Error for Error {}
}
pub mod observe {
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct Capture {
        pub at: Option<String>,
        pub drops: bool,
        pub filter: Option<String>,
        pub snaplen: Option<u32>,
        pub packets: Option<u64>,
    }
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct TracePackets {
        pub filter: Option<String>,
        pub packets: Option<u64>,
        pub dropped: Option<String>,
    }
    impl TracePackets {
        pub const DEFAULT: u64 = _;
        pub const MAX: u64 = _;
    }
    #[derive(
        Clone,
        Copy,
        Debug,
        Default,
        PartialEq,
        Eq,
        Serialize,
        Deserialize,
        JsonSchema
    )]
    pub struct Started {
        pub workers: u32,
    }
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct Captured {
        pub packets: Vec<CapturedPacket>,
        pub lost: u64,
        pub is_over: bool,
        pub reason: Option<String>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct CapturedPacket {
        pub time_ns: u64,
        pub clock: String,
        pub worker: u32,
        pub position: Position,
        pub name: String,
        pub reason: Option<String>,
        pub length: u32,
        pub bytes: String,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Position {
        Received,
        Sent,
        Entered,
        Left,
        Dropped,
        Other,
    }
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct Traced {
        pub packets: Vec<TracedPacket>,
        pub is_over: bool,
        pub reason: Option<String>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct TracedPacket {
        pub time_ns: u64,
        pub worker: u32,
        pub port: String,
        pub bytes: String,
        pub paths: Vec<TracePath>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct TracePath {
        pub stages: Vec<TraceHop>,
        pub fate: TraceFate,
        pub detail: Option<String>,
        pub bytes: String,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct TraceHop {
        pub stage: String,
        pub hit: Option<String>,
        pub output: Option<String>,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum TraceFate {
        Sent,
        Dropped,
        Consumed,
        Held,
        Other,
    }
    #[derive(
        Clone,
        Copy,
        Debug,
        Default,
        PartialEq,
        Eq,
        Serialize,
        Deserialize,
        JsonSchema
    )]
    pub struct BlackBox {
        pub offset: u64,
    }
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct BlackBoxPart {
        pub size: u64,
        pub bytes: String,
    }
}
mod printable {
    pub fn is_terminal_control(char: char) -> bool {}
    pub fn printable(text: &str) -> String {}
    pub fn printable_lines(text: &str) -> String {}
}
mod protocol {
    pub const VERSION: u32 = _;
    pub const MAX_REQUEST: usize = _;
    pub const MAX_PATH: usize = _;
    pub const TIMEOUT: Duration = _;
    #[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
    pub struct Request {
        pub version: u32,
        pub id: u64,
        pub call: Call,
    }
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    pub enum Call {
        Hello {},
        Stats {},
        Show(Show),
        Get(Get),
        Log(Log),
        Plan(NewConfig),
        Apply(Apply),
        Confirm {},
        Rollback {},
        History {},
        Reload {},
        Capture(Capture),
        Trace(TracePackets),
        Packets {},
        BlackBox(BlackBox),
        Upgrade {},
        TakeOver(TakeOver),
        HandOver {},
    }
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct Show {
        pub what: String,
        pub stage: Option<String>,
        pub limit: Option<u32>,
        pub cursor: Option<String>,
    }
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct Get {
        pub what: String,
        pub key: String,
        pub stage: Option<String>,
    }
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct Log {
        pub level: Option<String>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct LogLevel {
        pub level: String,
        pub previous: String,
    }
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct NewConfig {
        pub text: String,
        pub path: Option<String>,
    }
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct Apply {
        pub text: String,
        pub path: Option<String>,
        pub base: Option<String>,
        pub confirm_s: Option<u64>,
    }
    #[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
    pub struct Page {
        pub stage: Option<String>,
        pub rows: Vec<Box<RawValue>>,
        pub next: Option<String>,
    }
    #[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
    pub struct GetResult {
        pub stage: String,
        pub row: Option<Box<RawValue>>,
    }
    pub const LISTS: [&str; 6] = _;
    pub const DEFAULT_LIMIT: u32 = _;
    pub const MAX_LIMIT: u32 = _;
    impl Call {
        pub const NAMES: [&str; 18] = _;
    }
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    pub struct Hello {
        pub version: String,
        pub pid: u32,
        pub config: String,
        pub running_s: f64,
        pub protocol_versions: Vec<u32>,
        pub requests: Vec<String>,
        pub max_request: usize,
    }
    #[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
    pub struct Response {
        pub id: Option<u64>,
        pub result: Option<Box<RawValue>>,
        pub error: Option<Refusal>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct Refusal {
        pub code: ErrorCode,
        pub message: String,
        pub help: String,
        pub mistakes: Box<[ConfigMistake]>,
        pub operations: Box<[Operation]>,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[non_exhaustive]
    pub enum ErrorCode {
        BadJson,
        BadField,
        UnknownVersion,
        UnknownRequest,
        NotFound,
        TooLong,
        TooManyClients,
        WrongConfig,
        Busy,
        OtherBase,
        NeedsRestart,
        Failed,
        Other,
    }
    impl Refusal {
        pub fn new(
            code: ErrorCode,
            message: impl Into<String>,
            help: impl Into<String>,
        ) -> Self {}
    }
    impl fmt::Display for Refusal {}
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MalformedRequest {
        pub id: Option<u64>,
        pub error: Refusal,
    }
    impl Request {
        pub fn parse(line: &[u8]) -> Result<Self, MalformedRequest> {}
    }
    impl Response {
        pub fn result(id: u64, result: &impl Serialize) -> serde_json::Result<Self> {}
        pub fn error(id: Option<u64>, error: Refusal) -> Self {}
    }
    impl From<MalformedRequest> for Response {}
}
pub mod rows {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    pub struct PortRow {
        pub name: String,
        pub device: String,
        pub input: bool,
        pub link_up: Option<bool>,
        pub rx_pps: Option<f64>,
        pub tx_pps: Option<f64>,
        pub rx_bps: Option<f64>,
        pub tx_bps: Option<f64>,
        pub rx: u64,
        pub tx: u64,
        pub rx_bytes: u64,
        pub tx_bytes: u64,
        pub rx_lost: u64,
        pub rx_errors: u64,
        pub tx_dropped: u64,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct LinkRow {
        pub port: String,
        pub device: String,
        pub device_port: Option<u8>,
        pub interface: Option<String>,
        pub mac: String,
        pub mtu: u16,
        pub addresses: Vec<String>,
    }
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    pub struct StageRow {
        pub name: String,
        pub kind: String,
        pub packets: u64,
        pub burst: f64,
        pub cost_ns: Option<f64>,
        pub steered: u64,
        pub dropped: u64,
        pub consumed: u64,
        pub quarantined: u64,
        pub counters: BTreeMap<String, u64>,
    }
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    pub struct WorkerRow {
        pub worker: usize,
        pub core: u32,
        pub loops: u64,
        pub idle_percent: f64,
        pub rx: u64,
        pub tx: u64,
        pub dropped: u64,
        pub held: u64,
        pub unaccounted: i64,
        pub error: Option<String>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct MemoryRow {
        pub owner: String,
        pub buffers: Option<u64>,
        pub size_bytes: u64,
        pub pages: Option<String>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct ConfigRow {
        pub path: String,
        pub file: Option<String>,
        pub unconfirmed: bool,
        pub settings: Vec<String>,
        pub text: String,
    }
}
pub mod socket {
    pub const MAX_PATH: usize = _;
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct ControlSocket {
        pub process: u32,
        pub path: PathBuf,
        pub is_own: bool,
    }
    pub fn folders() -> Vec<PathBuf> {}
    pub fn name(process: u32) -> String {}
    pub fn sockets_in(folder: &Path) -> impl Iterator<Item = ControlSocket> {}
    pub fn is_own(about: &Metadata) -> bool {}
    pub fn address(path: &Path) -> Result<SocketAddrUnix, String> {}
    pub fn unix(flags: SocketFlags) -> io::Result<OwnedFd> {}
}
pub mod upgrade {
    pub const HAND_OVER_VERSION: u32 = _;
    pub const READY: u8 = _;
    pub const RUNNING: u8 = _;
    pub const DONE: u8 = _;
    pub const WITHDRAWN: u8 = _;
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct UpgradeStart {
        pub pid: u32,
        pub version: String,
        pub arguments: Vec<String>,
        pub directory: String,
        pub environment: Vec<(String, String)>,
    }
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct TakeOver {
        pub hand_over_version: u32,
    }
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    pub struct TakenConfig {
        pub text: String,
        pub settings: Vec<String>,
        pub running_s: f64,
        pub memories: Vec<MemoryRow>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct MemoryRow {
        pub pages: String,
        pub stride: u32,
        pub headroom: u32,
        pub count: u32,
    }
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct HandedOver {
        pub descriptors: Vec<String>,
        pub queues: Vec<QueueRow>,
        pub states: Vec<StateRow>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct QueueRow {
        pub port: String,
        pub queue: u16,
        pub descriptors: usize,
        pub posted: Vec<u32>,
        pub position: Vec<u64>,
    }
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct StateRow {
        pub worker: usize,
        pub stage: String,
        pub bytes: usize,
    }
    pub fn send_descriptors(
        stream: &UnixStream,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {}
    pub fn send_with_descriptors(
        mut stream: &UnixStream,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {}
    pub fn receive_descriptors(
        stream: &UnixStream,
        count: usize,
    ) -> io::Result<Vec<OwnedFd>> {}
    pub fn receive_with_descriptor(
        stream: &UnixStream,
        into: &mut [u8],
    ) -> io::Result<(usize, Option<io::Result<OwnedFd>>)> {}
    pub fn send_byte(mut stream: &UnixStream, byte: u8) -> io::Result<()> {}
    pub fn receive_byte(mut stream: &UnixStream) -> io::Result<u8> {}
}
pub use client::{Answer, Client, Pages};
pub use error::Error;
pub use printable::{is_terminal_control, printable, printable_lines};
pub use protocol::{
    Apply, Call, DEFAULT_LIMIT, ErrorCode, Get, GetResult, Hello, LISTS, Log, LogLevel,
    MAX_LIMIT, MAX_PATH, MAX_REQUEST, MalformedRequest, NewConfig, Page, Refusal,
    Request, Response, Show, TIMEOUT, VERSION,
};
