package firestore

import (
	"math"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/grpc"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
)

func interceptors(f *faultrpc.Injector) []grpc.UnaryClientInterceptor {
	return []grpc.UnaryClientInterceptor{f.Intercept}
}

func streamInterceptors(f *faultrpc.Injector) []grpc.StreamClientInterceptor {
	return []grpc.StreamClientInterceptor{f.InterceptStream}
}

// everyType returns a field of each type that the service has.
func everyType(reference string) map[string]*pb.Value {
	text := &pb.Value{ValueType: &pb.Value_StringValue{StringValue: "ü 😀 \x00 <&>"}}
	number := func(f float64) *pb.Value { return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: f}} }
	return map[string]*pb.Value{
		"null":      {ValueType: &pb.Value_NullValue{}},
		"bool":      {ValueType: &pb.Value_BooleanValue{BooleanValue: true}},
		"integer":   {ValueType: &pb.Value_IntegerValue{IntegerValue: math.MinInt64}},
		"double":    number(1.5),
		"whole":     number(3),
		"nan":       number(math.NaN()),
		"infinity":  number(math.Inf(-1)),
		"instant":   toValue(at(-5)),
		"text":      text,
		"bytes":     {ValueType: &pb.Value_BytesValue{BytesValue: []byte{0, 255}}},
		"reference": {ValueType: &pb.Value_ReferenceValue{ReferenceValue: reference}},
		"point":     {ValueType: &pb.Value_GeoPointValue{GeoPointValue: &latlng.LatLng{Latitude: 48.1, Longitude: 11.5}}},
		"array":     {ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: []*pb.Value{text, number(2), toValue(at(0))}}}},
		"map":       {ValueType: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: map[string]*pb.Value{"inner": text, "with space": number(2)}}}},
	}
}
