//! Cases for the handshake: the attributes that [`PreparedQueuePair`] sets on a queue pair.

use std::net::{Ipv4Addr, SocketAddr};

use dataplane::connect::{
    ConnectedQueuePair, EndpointParameters, Listener, Offer, PreparedQueuePair, QueuePairEndpoint, WaitLimits, connect,
    connect_pair,
};
use dataplane::verbs::{Access, CqSpec, QpAttributes, QpSpec, QpType, QueuePair, RawDevice};

use crate::bed::{CAPS, COMPLETION_TIMEOUT, Outcome, Stop, TestBed, state_name};
use crate::{Trial, differences};

/// Returns a prepared queue pair of the first or the second device of the test bed, and its completion queue.
fn prepared<D: RawDevice>(
    bed: &TestBed<D>,
    second: bool,
    parameters: EndpointParameters,
) -> Outcome<(PreparedQueuePair<D::Pd>, D::Cq)> {
    bed.require_type(QpType::Rc)?;
    let device = if second { &bed.b } else { &bed.a };
    let gid_index = Some(bed.gid_index[usize::from(second)] as u8);
    let parameters = EndpointParameters { gid_index, ..parameters };
    let pd = device.alloc_pd()?;
    let (cq, _) = device.create_cq(&CqSpec { depth: 64, ..CqSpec::default() }, None)?;
    let spec = QpSpec::new(QpType::Rc, bed.fit(CAPS));
    Ok((PreparedQueuePair::new(device, &pd, &spec, (&cq, &cq), None, parameters)?, cq))
}

/// Connects two new queue pairs. Returns, for each queue pair, the attributes that the device reports.
fn connected<D: RawDevice>(t: &Trial<'_, D>, parameters: EndpointParameters) -> Outcome<[QpAttributes; 2]> {
    let (a, _cq_of_a) = prepared(t.bed, false, parameters.clone())?;
    let (b, _cq_of_b) = prepared(t.bed, true, parameters)?;
    let numbers = [a.endpoint().qpn, b.endpoint().qpn];
    let (a, b) = connect_pair(a, b)?;
    let query = |side: &ConnectedQueuePair<D::Pd>| side.queue_pair().query();
    let got = [query(&a)?, query(&b)?];
    assert_eq!(got.map(|it| it.dest_qp), [numbers[1], numbers[0]], "each queue pair has the other as its peer");
    Ok(got)
}

/// Logs all attributes. `service_level` is the service level that was set.
fn log_all<D: RawDevice>(t: &mut Trial<'_, D>, sides: [QpAttributes; 2], service_level: u8) -> Outcome {
    let bed = t.bed.properties()?;
    for got in sides {
        let path = got.path;
        t.log(format!("{} port {} pkey {} {:?}", state_name(got.state), got.port, got.pkey_index, got.access));
        t.log(format!("psn {} {} reads {} {}", got.rq_psn, got.sq_psn, got.max_rd_atomic, got.max_dest_rd_atomic));
        t.log(format!("retries {} {} timers {} {}", got.retry_count, got.rnr_retry, got.min_rnr_timer, got.timeout));
        t.log(format!("global {} class {}", path.global, path.traffic_class));
        t.log(format!("hop limit {}", path.hop_limit));
        t.log(format!("flow label {} path bits {}", path.flow_label, path.source_path_bits));
        t.log(format!("sl {}", differences::service_level(bed, path.service_level, service_level)));
    }
    Ok(())
}

/// With default parameters, the handshake sets the same values as the crate `ibverbs` on crates.io (another project).
/// Only `timeout` differs.
pub(crate) fn defaults<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let sides = connected(t, EndpointParameters::default())?;
    log_all(t, sides, 0)?;
    t.expect(
        &"RTS port 1 pkey 0 Access(0x0)
         psn 0 0 reads 1 1
         retries 6 6 timers 16 14
         global true class 0
         hop limit 255
         flow label 0 path bits 0
         sl 0
         "
        .repeat(2),
    )
}

/// Each parameter sets the attribute with the same name.
pub(crate) fn parameters<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let parameters = EndpointParameters {
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        hop_limit: 17,
        traffic_class: 0x20,
        flow_label: 0x12345,
        service_level: 5,
        sq_psn: 0x1234,
        rq_psn: Some(0x1234),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 8,
        min_rnr_timer: 20,
        timeout: 15,
        retry_count: 3,
        rnr_retry: 5,
        ..EndpointParameters::default()
    };
    let sides = connected(t, parameters)?;
    log_all(t, sides, 5)?;
    t.expect(
        &"RTS port 1 pkey 0 Access(REMOTE_WRITE | REMOTE_READ)
         psn 4660 4660 reads 4 8
         retries 3 5 timers 20 15
         global true class 32
         hop limit 17
         flow label 74565 path bits 0
         sl 5
         "
        .repeat(2),
    )
}

/// An error lists every invalid parameter by name, before a queue pair is created.
pub(crate) fn invalid_parameters<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let parameters = EndpointParameters { pkey_index: 9_999, service_level: 16, ..EndpointParameters::default() };
    let why = match prepared(t.bed, false, parameters) {
        Ok(_) => "no error".to_owned(),
        Err(Stop::Fail(why)) => why,
        Err(skip) => return Err(skip),
    };
    let named = ["pkey_index", "service_level"].map(|name| why.contains(name));
    t.log(format!("both parameters are named: {}", named == [true, true]));
    t.expect("both parameters are named: true")
}

/// Two threads exchange the endpoints of their queue pairs over TCP. The two queue pairs then reach RTS.
pub(crate) fn over_tcp<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), None)?;
    let (bed, address) = (t.bed, listener.address()?);
    let run =
        |second: bool, listener: Option<&Listener>| -> Outcome<(QueuePairEndpoint, QueuePairEndpoint, &'static str)> {
            let (qp, _cq) = prepared(bed, second, EndpointParameters::default())?;
            let limits = WaitLimits::new(COMPLETION_TIMEOUT, COMPLETION_TIMEOUT);
            let own = [qp.endpoint()];
            let offer = Offer { endpoints: &own, allow_self: false };
            let exchanged = match listener {
                Some(listener) => listener.accept(&offer, &limits)?,
                None => connect(address, &offer, &limits)?,
            };
            let connected = qp.connect(&exchanged.remotes[0])?;
            let _peer = exchanged.confirm(&limits)?;
            Ok((own[0], connected.negotiated().remote, state_name(connected.queue_pair().query()?.state)))
        };
    let (passive, active) = std::thread::scope(|scope| {
        let passive = scope.spawn(|| run(false, Some(&listener)));
        let active = run(true, None);
        (passive.join().expect("the passive side does not panic"), active)
    });
    let (passive, active) = (passive?, active?);
    t.log(format!("passive side {}, active side {}", passive.2, active.2));
    t.log(format!("each side has the other's endpoint: {}", (passive.0, passive.1) == (active.1, active.0)));
    t.expect(
        "passive side RTS, active side RTS
         each side has the other's endpoint: true",
    )
}
