// Polls a completion queue of the first verbs device a given number of times. Prints the number of completions and a
// checksum over the last batch.
//
//     poll BURST POLLS
//
// The program does the same as benches/polling/src/main.rs, with the C functions of ibv_create_cq_ex(3). Both programs
// read the same fields into arrays of the same types.

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { RUN = 256 };

// The first `len` entries of each array are valid. `status` is only valid if `failed` is set.
struct run {
  size_t len;
  bool failed;
  uint64_t wr_id[RUN];
  uint32_t byte_len[RUN];
  uint64_t ticks[RUN];
  enum ibv_wc_status status[RUN];
};

static void __attribute__((cold, noinline)) fail(struct run *run, size_t at, enum ibv_wc_status status) {
  for (size_t each = 0; !run->failed && each < RUN; each++) run->status[each] = IBV_WC_SUCCESS;
  run->failed = true;
  run->status[at] = status;
}

// Polls up to `limit` completions into `run`. Returns their number, or a negative value on an error.
static inline int poll_run(struct ibv_cq_ex *cq, struct run *run, size_t limit) {
  run->len = 0;
  run->failed = false;
  if (limit > RUN) limit = RUN;
  if (limit == 0) return 0;
  struct ibv_poll_cq_attr attr = {};
  int answer = ibv_start_poll(cq, &attr);
  if (answer != 0) return answer == ENOENT ? 0 : -1;
  size_t at = 0;
  for (;;) {
    run->wr_id[at] = cq->wr_id;
    if (cq->status == IBV_WC_SUCCESS) {
      run->byte_len[at] = ibv_wc_read_byte_len(cq);
      run->ticks[at] = ibv_wc_read_completion_ts(cq);
    } else {
      run->byte_len[at] = 0;
      run->ticks[at] = 0;
      fail(run, at, cq->status);
    }
    at++;
    if (at >= limit) break;
    answer = ibv_next_poll(cq);
    if (answer != 0) break;
  }
  ibv_end_poll(cq);
  run->len = at;
  return answer == 0 || answer == ENOENT ? (int)at : -1;
}

// benches/instructions counts the instructions of this function.
__attribute__((noinline)) static long count_polls(struct ibv_cq_ex *cq, struct run *run, size_t burst, uint64_t polls) {
  long count = 0;
  for (uint64_t poll = 0; poll < polls; poll++) {
    int polled = poll_run(cq, run, burst);
    if (polled < 0) return -1;
    count += polled;
  }
  return count;
}

int main(int argc, char **argv) {
  struct ibv_device **devices = argc == 3 ? ibv_get_device_list(NULL) : NULL;
  struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
  if (!context) return fprintf(stderr, "usage: poll BURST POLLS, with at least one verbs device\n"), 1;
  struct ibv_cq_init_attr_ex attr = {
      .cqe = 1024, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
  struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
  struct run *run = calloc(1, sizeof *run);
  if (!cq || !run) return perror("poll"), 1;
  long count = count_polls(cq, run, strtoul(argv[1], NULL, 10), strtoull(argv[2], NULL, 10));
  uint64_t sum = 0;
  for (size_t at = 0; at < run->len; at++) sum = sum * 31 + (run->wr_id[at] * 3 ^ run->byte_len[at] ^ run->ticks[at]);
  printf("%ld %llu\n", count, (unsigned long long)sum);
  return count < 0;
}
