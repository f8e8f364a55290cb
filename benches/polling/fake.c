// A verbs device in memory, for preloading before libibverbs (LD_PRELOAD). Its completion queues never run empty. The
// library implements only these calls: open and query the device, create and poll extended completion queues.

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 1024 };

struct entry {
  uint64_t wr_id, ticks;
  uint32_t status, byte_len;
};

struct fake_cq {
  struct ibv_cq_ex cq;
  uint32_t next;
  struct entry *at;
  struct entry entries[ENTRIES];
};

static struct fake_cq *fake(struct ibv_cq_ex *cq) { return (struct fake_cq *)cq; }

static int next_poll(struct ibv_cq_ex *cq) {
  struct fake_cq *self = fake(cq);
  self->at = &self->entries[self->next++ % ENTRIES];
  cq->wr_id = self->at->wr_id;
  cq->status = self->at->status;
  return 0;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr) {
  return attr->comp_mask ? EINVAL : next_poll(cq);
}

static void end_poll(struct ibv_cq_ex *cq) { fake(cq)->at = NULL; }
static uint32_t read_byte_len(struct ibv_cq_ex *cq) { return fake(cq)->at->byte_len; }
static uint64_t read_completion_ts(struct ibv_cq_ex *cq) { return fake(cq)->at->ticks; }
// The reader of the QP number and of the vendor error code, which the benchmark does not read. Returns 0.
static uint32_t read_zero(struct ibv_cq_ex *cq) { return (void)cq, 0; }
static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq) { return (void)cq, IBV_WC_RECV; }
static unsigned int read_wc_flags(struct ibv_cq_ex *cq) { return (void)cq, 0; }

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr) {
  const uint64_t fields = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_QP_NUM;
  struct fake_cq *self = attr->wc_flags & ~fields || attr->comp_mask ? NULL : calloc(1, sizeof *self);
  if (!self) return errno = EOPNOTSUPP, NULL;
  for (uint32_t at = 0; at < ENTRIES; at++)
    self->entries[at] = (struct entry){.wr_id = at * 7919, .ticks = at * 104729, .byte_len = at % 1400 + 64};
  self->cq = (struct ibv_cq_ex){
      .context = context, .cq_context = attr->cq_context, .cqe = (int)attr->cqe,
      .start_poll = start_poll, .next_poll = next_poll, .end_poll = end_poll,
      .read_byte_len = read_byte_len, .read_completion_ts = read_completion_ts, .read_qp_num = read_zero,
      .read_opcode = read_opcode, .read_vendor_err = read_zero, .read_wc_flags = read_wc_flags};
  return &self->cq;
}

static struct verbs_context extended_context = {
    .sz = sizeof extended_context,
    .create_cq_ex = create_cq_ex,
    .context = {.abi_compat = __VERBS_ABI_IS_EXTENDED, .num_comp_vectors = 1, .async_fd = -1, .cmd_fd = -1}};
static struct ibv_device device = {.name = "fake"};

struct ibv_device **ibv_get_device_list(int *count) {
  struct ibv_device **list = calloc(2, sizeof *list);
  if (list) list[0] = &device;
  if (count) *count = 1;
  return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *one) { return one->name; }
struct ibv_context *ibv_open_device(struct ibv_device *one) { return extended_context.context.device = one, &extended_context.context; }
int ibv_close_device(struct ibv_context *context) { return (void)context, 0; }
enum ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) { return (void)context, errno = EOPNOTSUPP, NULL; }

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector) {
  return (void)context, (void)cqe, (void)cq_context, (void)channel, (void)vector, errno = EOPNOTSUPP, NULL;
}

int ibv_destroy_cq(struct ibv_cq *cq) { return free(cq), 0; }

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
  memset(attr, 0, sizeof *attr);
  attr->max_cq = attr->max_cqe = 1 << 20;
  return (void)context, 0;
}
