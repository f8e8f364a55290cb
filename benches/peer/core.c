/* Measures the clock and the additions per cycle of all given cores at the same time.
 *
 *     core CORE...
 *
 * Prints one line per core: the clock in GHz and the number of additions per cycle.
 *
 * A chain of dependent additions takes one cycle per addition, so the chain gives the clock. Independent additions use all
 * arithmetic units of the core. If the other hyperthread of the core is busy, about half of the units remain. Chain and
 * independent additions alternate because the clock may change. The result is the lower quartile of the turns: some turns are
 * interrupted, and the other hyperthread may be busy for only part of the time. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TURNS 10
/* Additions per turn. */
#define DEPENDENT 200000
#define INDEPENDENT 6400000

/* The empty assembly statement prevents the compiler from combining the additions. */
#define ADD(to) to += 3; __asm__ volatile("" : "+r"(to));
#define REPEAT_10(code) code code code code code code code code code code

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

/* Returns the time of the dependent additions in nanoseconds. */
static double time_dependent(void)
{
	uint64_t a = 1;
	double start = now();

	for (int i = 0; i < DEPENDENT / 10; i++) {
		REPEAT_10(ADD(a))
	}
	return now() - start;
}

/* Returns the time of the independent additions in nanoseconds. */
static double time_independent(void)
{
	uint64_t a = 1, b = 1, c = 1, d = 1, e = 1, f = 1, g = 1, h = 1;
	double start = now();

	for (int i = 0; i < INDEPENDENT / 80; i++) {
		REPEAT_10(ADD(a) ADD(b) ADD(c) ADD(d) ADD(e) ADD(f) ADD(g) ADD(h))
	}
	return now() - start;
}

static int compare(const void *left, const void *right)
{
	double difference = *(const double *)left - *(const double *)right;

	return (difference > 0) - (difference < 0);
}

static pthread_barrier_t start_barrier;

struct core {
	pthread_t thread;
	int number;
	double ghz, additions;
};

/* The function of each thread. Returns an error message, or NULL. */
static void *measure_core(void *argument)
{
	struct core *core = argument;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core->number, &set);
	int failed = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
	pthread_barrier_wait(&start_barrier);
	if (failed)
		return "this process may not run on the core";
	double fastest = 1e18;
	double ratios[TURNS];
	for (int turn = 0; turn < TURNS; turn++) {
		double took = time_dependent();
		ratios[turn] = took / time_independent();
		if (took < fastest)
			fastest = took;
	}
	qsort(ratios, TURNS, sizeof(ratios[0]), compare);
	core->ghz = DEPENDENT / fastest;
	core->additions = (double)INDEPENDENT / DEPENDENT * ratios[TURNS / 4];
	return NULL;
}

int main(int count, char **words)
{
	struct core cores[count];

	count--;
	pthread_barrier_init(&start_barrier, NULL, count);
	for (int i = 0; i < count; i++) {
		cores[i].number = atoi(words[i + 1]);
		if (pthread_create(&cores[i].thread, NULL, measure_core, &cores[i]) != 0) {
			perror("pthread_create");
			return 1;
		}
	}
	for (int i = 0; i < count; i++) {
		void *error;
		pthread_join(cores[i].thread, &error);
		if (error) {
			fprintf(stderr, "core %d: %s\n", cores[i].number, (char *)error);
			return 1;
		}
	}
	for (int i = 0; i < count; i++)
		printf("%.3f %.3f\n", cores[i].ghz, cores[i].additions);
	return 0;
}
