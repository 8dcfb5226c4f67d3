package server

import (
	"google.golang.org/grpc/metadata"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

type events struct {
	pb.UnimplementedEventsServer
	*Server
}

// Subscribe replays from the cursor and then follows. Nothing is buffered per subscriber: a stream reads the next page
// from its own cursor when the store says that something changed, so that a slow reader holds up nobody but itself.
// Without a cursor (0) it starts with the oldest event that is kept.
func (s *events) Subscribe(req *pb.SubscribeRequest, stream pb.Events_SubscribeServer) error {
	q, err := eventQuery(req)
	if err != nil {
		return err
	}
	// The caller learns at once that it is heard, however long the first event takes.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	upTo := s.cfg.Store.LastEvent() // what no_follow ends with, however fast events come
	for {
		changed := s.cfg.Store.Changed() // before the read, so that nothing falls between the two
		if err := s.send(stream, &q); err != nil {
			return err
		}
		switch {
		case req.GetNoFollow() && q.After >= upTo:
			return nil
		case q.After < s.cfg.Store.LastEvent():
			changed = closed // the page did not reach the newest event
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.cfg.Stopping:
			return pool.Errorf(pool.CodeUnavailable, "the daemon is stopping; subscribe again after id %d", q.After)
		case <-changed:
		}
	}
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func eventQuery(req *pb.SubscribeRequest) (store.EventQuery, error) {
	var f faults
	if req.GetAfterId() < 0 {
		f.add("after_id", "is %d, must not be negative; 0 asks for everything that is kept", req.GetAfterId())
	}
	q := store.EventQuery{After: req.GetAfterId()}
	for i, t := range req.GetTypes() {
		if _, known := pb.EventType_name[int32(t)]; !known || t == pb.EventType_EVENT_TYPE_UNSPECIFIED {
			f.add(at("types", i), "there is no event type %d; leave types empty to get all", int32(t))
		}
		q.Types = append(q.Types, pool.EventType(t.String()))
	}
	key, err := optionalKey("pool", req.GetPool())
	if err != nil {
		return q, err
	}
	q.Pool = key
	return q, invalid(f.Faults)
}

// send delivers one page and moves the cursor.
func (s *events) send(stream pb.Events_SubscribeServer, q *store.EventQuery) error {
	page, err := s.cfg.Store.Since(stream.Context(), *q)
	if err != nil {
		return err
	}
	for _, e := range page.Events {
		out, err := encodeEvent(e)
		if err != nil {
			return err
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
	q.After = page.Cursor
	return nil
}
