/* Prints, for each core that it is told, its clock in GHz and how many additions it does in a cycle, all of them at the
 * same time.
 *
 * A chain of additions, each of which waits for the one before, takes a cycle for each: that is the clock, by the fastest
 * of some tries, as others had the core in the rest. Additions that wait for nothing take what the core has for them. Where
 * it runs two threads, and the other one is at work, that is half of it: what others do, or a core that is asked for at the
 * same time and is the other half of the same. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STEPS 400000
#define TRIES 5
#define WIDE 60000000

/* What the compiler does not know it cannot shorten. */
#define ADD(to) to += 3; __asm__ volatile("" : "+r"(to));
#define TEN(what) what what what what what what what what what what

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static double clock_ghz(void)
{
	double best = 1e18;
	uint64_t sum = 1;

	for (int try = 0; try < TRIES; try++) {
		double start = now();
		for (int i = 0; i < STEPS / 10; i++) {
			TEN(ADD(sum))
		}
		double took = now() - start;
		if (took < best)
			best = took;
	}
	return STEPS / best;
}

/* Additions in a nanosecond. */
static double wide(void)
{
	uint64_t a = 1, b = 1, c = 1, d = 1, e = 1, f = 1, g = 1, h = 1;
	double start = now();

	for (int i = 0; i < WIDE / 80; i++) {
		TEN(ADD(a) ADD(b) ADD(c) ADD(d) ADD(e) ADD(f) ADD(g) ADD(h))
	}
	return WIDE / (now() - start);
}

static pthread_barrier_t all;

struct core {
	pthread_t thread;
	int number;
	double ghz, additions;
};

static void *look(void *given)
{
	struct core *core = given;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core->number, &set);
	int failed = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
	pthread_barrier_wait(&all);
	if (failed)
		return "this process may not use the core";
	core->ghz = clock_ghz();
	core->additions = wide() / core->ghz;
	return NULL;
}

int main(int count, char **words)
{
	struct core cores[count];

	count--;
	pthread_barrier_init(&all, NULL, count);
	for (int i = 0; i < count; i++) {
		cores[i].number = atoi(words[i + 1]);
		if (pthread_create(&cores[i].thread, NULL, look, &cores[i]) != 0) {
			perror("pthread_create");
			return 1;
		}
	}
	for (int i = 0; i < count; i++) {
		void *failed;
		pthread_join(cores[i].thread, &failed);
		if (failed) {
			fprintf(stderr, "%d: %s\n", cores[i].number, (char *)failed);
			return 1;
		}
	}
	for (int i = 0; i < count; i++)
		printf("%.3f %.3f\n", cores[i].ghz, cores[i].additions);
	return 0;
}
