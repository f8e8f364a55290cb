//! Cases for the handshake: the attributes that [`PreparedQueuePair`] sets on a queue pair.

use dataplane::connect::{ConnectedQueuePair, EndpointParameters, PreparedQueuePair, join};
use dataplane::verbs::{Access, CqSpec, Device, QpAttributes, QpSpec, QpType, QueuePair};

use crate::Trial;
use crate::bed::{CAPS, Outcome, state_name};

/// Connects two new queue pairs, and returns the attributes that both devices report.
fn connected<D: Device>(t: &Trial<'_, D>, kind: QpType, parameters: EndpointParameters) -> Outcome<[QpAttributes; 2]> {
    let parameters = EndpointParameters { gid_index: Some(t.bed.gid_index as u8), ..parameters };
    let prepared = |device: &D| -> Outcome<_> {
        let pd = device.alloc_pd()?;
        let (cq, _) = device.create_cq(&CqSpec { depth: 64, ..CqSpec::default() }, None)?;
        let spec = QpSpec::new(kind, CAPS);
        Ok((PreparedQueuePair::new(device, &pd, &spec, (&cq, &cq), None, parameters.clone())?, cq))
    };
    let ((a, _cq_of_a), (b, _cq_of_b)) = (prepared(&t.bed.a)?, prepared(&t.bed.b)?);
    let numbers = [a.endpoint().qpn, b.endpoint().qpn];
    let (a, b) = join(a, b)?;
    let query = |side: &ConnectedQueuePair<D::Pd>| side.queue_pair().query();
    let got = [query(&a)?, query(&b)?];
    assert_eq!(got.map(|it| it.dest_qp), [numbers[1], numbers[0]], "each queue pair has the other as its peer");
    Ok(got)
}

fn log_all<D: Device>(t: &mut Trial<'_, D>, sides: [QpAttributes; 2]) {
    for got in sides {
        let path = got.path;
        t.log(format!("{} port {} pkey {} {:?}", state_name(got.state), got.port, got.pkey_index, got.access));
        t.log(format!(
            "psn {} {} reads {} {}",
            got.rq_psn, got.sq_psn, got.max_rd_atomic, got.max_dest_rd_atomic
        ));
        t.log(format!("retries {} {} timers {} {}", got.retry_count, got.rnr_retry, got.min_rnr_timer, got.timeout));
        t.log(format!("global {} class {}", path.global, path.traffic_class));
        t.log(format!("hop limit {}", path.hop_limit));
        t.log(format!("flow label {} path bits {}", path.flow_label, path.source_path_bits));
        t.log(format!("sl {}", path.service_level));
    }
}

/// Without parameters, the handshake sets the attributes that the crate `ibverbs` documents.
pub(crate) fn defaults<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let sides = connected(t, QpType::Rc, EndpointParameters::default())?;
    log_all(t, sides);
    t.expect(&"RTS port 1 pkey 0 Access(0x0)
         psn 0 0 reads 1 1
         retries 6 6 timers 16 14
         global true class 0
         hop limit 255
         flow label 0 path bits 0
         sl 0
         ".repeat(2))
}

/// Each parameter sets its attribute.
pub(crate) fn parameters<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
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
    let sides = connected(t, QpType::Rc, parameters)?;
    log_all(t, sides);
    t.expect(&"RTS port 1 pkey 0 Access(REMOTE_WRITE | REMOTE_READ)
         psn 4660 4660 reads 4 8
         retries 3 5 timers 20 15
         global true class 32
         hop limit 17
         flow label 74565 path bits 0
         sl 5
         ".repeat(2))
}
