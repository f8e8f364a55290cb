/* Passes items of 8 bytes from one core to another through DPDK's ring. benches/parts does the same with the ring of Dataplane.
 *
 *     ring EAL-OPTIONS
 *
 * The EAL options must name two lcores: lcore 1 enqueues items and lcore 0 dequeues them. serve.h describes the protocol. The
 * rates are items per second. */

#include <stdbool.h>

#include <rte_eal.h>
#include <rte_launch.h>
#include <rte_pause.h>
#include <rte_ring.h>

#include "serve.h"

#define BURST 32
#define SLOTS 1024
/* The number of items for the checksum: a multiple of the burst size. */
#define FIRST_ITEMS (1 << 20)

/* The alignment keeps data of the two lcores in separate cache lines. */
static struct {
	struct rte_ring *ring;
	uint64_t limit;
	bool stop;
} shared __rte_cache_aligned;
static uint64_t sent __rte_cache_aligned;

/* Enqueues the numbers from 0 on, burst by burst, until the limit or the stop flag. */
static int enqueue(void *unused)
{
	uint64_t next = 0, items[BURST];

	(void)unused;
	while (next < shared.limit && !__atomic_load_n(&shared.stop, __ATOMIC_RELAXED)) {
		for (int i = 0; i < BURST; i++)
			items[i] = next + i;
		unsigned int count = rte_ring_sp_enqueue_burst(shared.ring, (void **)items, BURST, NULL);
		if (count == 0)
			rte_pause();
		next += count;
	}
	sent = next;
	return 0;
}

struct received { uint64_t count, sum; };

/* Dequeues a burst. Adds each item multiplied by its position to the sum, so that the sum depends on the order. Returns false if
 * the ring is empty. */
static bool dequeue(struct received *received)
{
	uint64_t items[BURST], sum = received->sum;
	unsigned int count = rte_ring_sc_dequeue_burst(shared.ring, (void **)items, BURST, NULL);

	for (unsigned int i = 0; i < count; i++)
		sum += items[i] * (received->count + i);
	received->sum = sum;
	received->count += count;
	return count != 0;
}

/* Returns the expected sum for the numbers from 0 to count - 1: the sum of their squares. */
static uint64_t sum_of_squares(uint64_t count)
{
	unsigned __int128 n = count;

	return n == 0 ? 0 : (n - 1) * n * (2 * n - 1) / 6;
}

/* Passes up to `limit` items for at most `seconds`. Returns the rate in millions of items per second, and stores the sum. */
static double pass_items(uint64_t limit, double seconds, uint64_t *sum)
{
	struct received received = { 0, 0 };
	double took;

	shared.limit = limit;
	shared.stop = false;
	if (rte_eal_remote_launch(enqueue, NULL, 1) != 0)
		fail("rte_eal_remote_launch failed");
	while (!dequeue(&received))
		rte_pause();
	double began = now();
	do {
		for (int i = 0; i < 1024 && received.count < limit; i++)
			if (!dequeue(&received))
				rte_pause();
		took = now() - began;
	} while (received.count < limit && took < seconds);
	double rate = received.count / took / 1e6;
	__atomic_store_n(&shared.stop, true, __ATOMIC_RELAXED);
	rte_eal_wait_lcore(1);
	while (dequeue(&received))
		;
	if (received.count != sent || received.sum != sum_of_squares(sent))
		fail("the received items differ from the sent items");
	*sum = received.sum;
	return rate;
}

static double measure(double seconds)
{
	uint64_t sum;

	return pass_items(UINT64_MAX, seconds, &sum);
}

int main(int count, char **words)
{
	uint64_t sum;

	if (rte_eal_init(count, words) < 0)
		fail("rte_eal_init failed");
	shared.ring = rte_ring_create("ring", SLOTS, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ | RING_F_EXACT_SZ);
	if (shared.ring == NULL)
		fail("rte_ring_create failed");
	double began = now();
	pass_items(FIRST_ITEMS, 60, &sum);
	serve(now() - began, sum, measure);
	return 0;
}
